// SPDX-License-Identifier: MIT
// Which waiting calls a signal ends. Without SA_RESTART it ends all. With it, it ends those that signal(7) names, such as calls on sockets
// with a timeout.
// libs: -lrt
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int pipes[2], full[2], pair[2], listener, timed[2], timed_listener, epoll, queue, sems, lock_file, other_lock, word;
static mqd_t messages;
static sem_t sem;
static pid_t child;
static char buffer[1 << 16], fifo[64];
static struct iovec iov = {buffer, sizeof buffer}, one = {buffer, 1};
static struct msghdr in = {.msg_iov = &one, .msg_iovlen = 1}, out = {.msg_iov = &iov, .msg_iovlen = 1};
static const struct timespec hour = {3600, 0};
static struct {
  long type;
  char text[8];
} message = {1};

static void fill(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  while (write(fd, buffer, sizeof buffer) > 0) {
  }
  while (write(fd, buffer, 1) > 0) {
  }
  fcntl(fd, F_SETFL, 0);
}
static void drain(int fd) {
  fcntl(fd, F_SETFL, O_NONBLOCK);
  while (read(fd, buffer, sizeof buffer) > 0) {
  }
  fcntl(fd, F_SETFL, 0);
}
static int listens(void) {
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  struct sockaddr_un a = {AF_UNIX};
  assert(bind(fd, (void*)&a, sizeof(sa_family_t)) == 0 && listen(fd, 8) == 0);
  return fd;
}
static int connects(int to) {
  struct sockaddr_un a;
  socklen_t size = sizeof a;
  getsockname(to, (void*)&a, &size);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert(connect(fd, (void*)&a, size) == 0);
  return fd;
}

// The calls, and what ends each of them.
#define CALLS(X) \
  X(0, read(pipes[0], buffer, 1), write(pipes[1], "x", 1)) \
  X(0, readv(pipes[0], &one, 1), write(pipes[1], "x", 1)) \
  X(0, write(full[1], "x", 1), drain(full[0])) \
  X(0, writev(full[1], &one, 1), drain(full[0])) \
  X(0, recv(pair[0], buffer, 1, 0), send(pair[1], "x", 1, 0)) \
  X(0, recvfrom(pair[0], buffer, 1, 0, NULL, NULL), send(pair[1], "x", 1, 0)) \
  X(0, recvmsg(pair[0], &in, 0), send(pair[1], "x", 1, 0)) \
  X(0, send(pair[0], buffer, 1, 0), drain(pair[1])) \
  X(0, sendmsg(pair[0], &out, 0), drains_all()) \
  X(0, accept(listener, NULL, NULL), connects(listener)) \
  X(0, accept4(listener, NULL, NULL, SOCK_CLOEXEC), connects(listener)) \
  X(0, waitpid(child, NULL, 0), kill(child, SIGKILL)) \
  X(0, waitid(P_PID, child, &info, WEXITED), kill(child, SIGKILL)) \
  X(0, flock(lock_file, LOCK_EX), flock(other_lock, LOCK_UN)) \
  X(0, fcntl(lock_file, F_OFD_SETLKW, &whole), fcntl(other_lock, F_OFD_SETLK, &unlocked)) \
  X(0, sem_wait(&sem), sem_post(&sem)) \
  X(0, mq_receive(messages, buffer, sizeof buffer, NULL), mq_send(messages, "x", 1, 0)) \
  X(0, open(fifo, O_WRONLY), open(fifo, O_RDONLY | O_NONBLOCK)) \
  X(0, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0), wakes()) \
  X(1, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &hour, NULL, 0), 0) \
  X(1, nanosleep(&hour, NULL), 0) \
  X(1, (errno = clock_nanosleep(CLOCK_MONOTONIC, 0, &hour, NULL)) ? -1 : 0, 0) \
  X(1, usleep(900000000), 0) \
  X(1, pause(), 0) \
  X(1, sigsuspend(&none), 0) \
  X(1, sigtimedwait(&another, NULL, &hour), 0) \
  X(1, sigwaitinfo(&another, NULL), 0) \
  X(1, poll(&readable, 1, -1), 0) \
  X(1, ppoll(&readable, 1, NULL, NULL), 0) \
  X(1, ppoll(&readable, 1, &hour, &none), 0) \
  X(1, select(0, NULL, NULL, NULL, &(struct timeval){3600, 0}), 0) \
  X(1, pselect(0, NULL, NULL, NULL, &hour, &none), 0) \
  X(1, epoll_wait(epoll, &event, 1, -1), 0) \
  X(1, epoll_pwait(epoll, &event, 1, 1000000, &none), 0) \
  X(1, msgrcv(queue, &message, sizeof message.text, 2, 0), 0) \
  X(1, semop(sems, &take, 1), 0) \
  X(1, semtimedop(sems, &take, 1, &hour), 0) \
  X(1, recv(timed[0], buffer, 1, 0), 0) \
  X(1, read(timed[0], buffer, 1), 0) \
  X(1, accept(timed_listener, NULL, NULL), 0)

static struct sembuf take = {0, -1, 0};
static siginfo_t info;
static struct flock whole = {F_WRLCK, SEEK_SET}, unlocked = {F_UNLCK, SEEK_SET};
static sigset_t none, another;
static struct pollfd readable;
static struct epoll_event event;
static volatile int done;
static void wakes(void) {
  while (!done) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), usleep(500);
}
// The parts of a large message are sent as there is room.
static void drains_all(void) {
  while (!done) drain(pair[1]), usleep(500);
}

static const struct {
  const char* name;
  int never;
} calls[] = {
#define NAME(never, call, ...) {#call, never},
    CALLS(NAME)};
enum { kCalls = sizeof calls / sizeof *calls };

static volatile int runs, result, about;
static void on_signal(int sig) { runs++; }
static void* make_call(void* p) {
  int k = 0, i = (int)(long)p;
  about = 1;
#define CALL(never, call, ...) \
  if (k++ == i) result = (call) < 0 ? errno : 0;
  CALLS(CALL)
  done = 1;
  return NULL;
}
static void release(int i) {
  int k = 0;
#define RELEASE(never, call, ...) \
  if (k++ == i) (void)(__VA_ARGS__);
  CALLS(RELEASE)
}

// qemu 10 and 11 accept a socket's timeout, but return nothing to a program that reads it. The library has to read it, so those calls are
// left out there.
static int left_out(const char* name) {
  struct timeval t = {0};
  socklen_t size = sizeof t;
  if (!strstr(name, "(timed[") && !strstr(name, "(timed_")) return 0;
  return getsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &t, &size) == 0 && size == 0;
}

// Prepares what the call needs.
static void prepare(const char* name) {
  done = about = runs = 0;
  result = -1;
  if (strstr(name, "full")) fill(full[1]);
  if (!strncmp(name, "send", 4)) fill(pair[0]);
  if (!strncmp(name, "wait", 4) && (child = fork()) == 0)
    for (;;) pause();
  if (!strncmp(name, "flock", 5)) assert(flock(other_lock, LOCK_EX) == 0);
  if (!strncmp(name, "fcntl", 5)) assert(fcntl(other_lock, F_OFD_SETLK, &whole) == 0);
}
static void clean(const char* name) {
  drain(pipes[0]), drain(full[0]), drain(pair[0]), drain(pair[1]);
  if (!strncmp(name, "wait", 4)) kill(child, SIGKILL), waitpid(child, NULL, 0);
  flock(lock_file, LOCK_UN), flock(other_lock, LOCK_UN);
  fcntl(lock_file, F_OFD_SETLK, &unlocked), fcntl(other_lock, F_OFD_SETLK, &unlocked);
}

// A pending signal that the call's mask lets in also ends calls that do not wait.
static void* without_waiting(void* p) {
  const struct timespec zero = {0, 0};
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  runs = 0;
#define NOW(call) \
  do { \
    raise(SIGUSR1); \
    int r = (call), e = errno; \
    printf("%s: %s, handled %d\n", #call, r < 0 ? strerrorname_np(e) : r ? "ready" : "0", runs); \
  } while (0)
  NOW(ppoll(NULL, 0, &zero, &none));
  NOW(ppoll(&readable, 1, &zero, &none));
  NOW(pselect(0, NULL, NULL, NULL, &zero, &none));
  NOW(epoll_pwait(epoll, &event, 1, 0, &none));
  NOW(ppoll(&readable, 1, &zero, NULL));
  assert(write(pipes[1], "x", 1) == 1);
  NOW(ppoll(&readable, 1, &zero, &none));
  drain(pipes[0]);
  NOW(ppoll(&readable, 1, &zero, &usr1));
  NOW(ppoll(&readable, 1, &zero, &none));
  return p;
}

int main() {
  setvbuf(stdout, NULL, _IOLBF, 1 << 16);
  alarm(250);
  char name[64];
  sigemptyset(&none);
  sigemptyset(&another);
  sigaddset(&another, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &another, NULL);
  sem_init(&sem, 0, 0);
  assert(pipe(pipes) == 0 && pipe(full) == 0);
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, timed) == 0);
  listener = listens(), timed_listener = listens();
  struct timeval long_time = {3600, 0};
  setsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
  setsockopt(timed_listener, SOL_SOCKET, SO_RCVTIMEO, &long_time, sizeof long_time);
  epoll = epoll_create1(0);
  readable = (struct pollfd){pipes[0], POLLIN};
  queue = msgget(IPC_PRIVATE, 0600);
  sems = semget(IPC_PRIVATE, 1, 0600);
  snprintf(name, sizeof name, "/signals_restart-%d", getpid());
  struct mq_attr a = {.mq_maxmsg = 1, .mq_msgsize = 64};
  messages = mq_open(name, O_CREAT | O_RDWR, 0600, &a);
  mq_unlink(name);
  lock_file = open("a lock", O_CREAT | O_RDWR, 0600), other_lock = open("a lock", O_RDWR);
  assert(lock_file >= 0 && other_lock >= 0);
  snprintf(fifo, sizeof fifo, "a fifo");
  assert(mkfifo(fifo, 0600) == 0);

  for (int flags = 0; flags < 2; flags++) {
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = flags ? SA_RESTART : 0};
    sigaction(SIGUSR1, &act, NULL);
    for (int i = 0; i < kCalls; i++) {
      if (left_out(calls[i].name)) continue;
      pthread_t t;
      prepare(calls[i].name);
      pthread_create(&t, NULL, make_call, (void*)(long)i);
      while (!about) sched_yield();
      usleep(2000);
      // Sends signals until the call ends. The first one need not end it, since it may come before the wait. A call that goes on is
      // released after some signals.
      int ends = !flags || calls[i].never, sent = 0;
      while (!done && (ends || sent < 5)) {
        sent++;
        int before = runs;
        pthread_kill(t, SIGUSR1);
        usleep(1000);
        while (runs == before && !done) usleep(200);
      }
      if (!done) release(i);
      pthread_join(t, NULL);
      printf("%s%s: %s\n", flags ? "SA_RESTART, " : "", calls[i].name, result ? strerrorname_np(result) : "0");
      clean(calls[i].name);
    }
  }
  pthread_t t;
  pthread_create(&t, NULL, without_waiting, NULL);
  pthread_join(t, NULL);
  without_waiting(NULL);
  msgctl(queue, IPC_RMID, NULL);
  semctl(sems, 0, IPC_RMID);
  unlink("a lock"), unlink(fifo);
  return 0;
}
