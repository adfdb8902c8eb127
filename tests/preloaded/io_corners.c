// SPDX-License-Identifier: MIT
// What is easily lost if a call is tried first and waits elsewhere: blocked SIGPIPE, terminals whose read() ends by itself, errors behind a
// partial transfer, flags set by number. Also processes that are made while others wait.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static volatile int handled;
static void count(int sig) {
  (void)sig;
  __atomic_fetch_add(&handled, 1, __ATOMIC_SEQ_CST);
}

static const char* name(int e) { return e ? strerrorname_np(e) : "0"; }

// ---- SIGPIPE, which some threads block ----
static volatile int stop;
static void* bystander(void* p) {
  while (!stop) sched_yield();
  return p;
}
static void* breaks(void* p) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGPIPE);
  if (p) pthread_sigmask(SIG_BLOCK, &s, NULL);
  for (int kind = 0; kind < 6; kind++) {
    int fd[2], file = open("/proc/self/exe", O_RDONLY), other[2];
    assert((kind ? socketpair(AF_UNIX, kind == 2 ? SOCK_SEQPACKET : SOCK_STREAM, 0, fd) : pipe(fd)) == 0);
    close(fd[0]);
    handled = 0;
    assert(pipe(other) == 0 && write(other[1], "x", 1) == 1);
    long r = kind == 3   ? send(fd[1], "x", 1, MSG_NOSIGNAL)
             : kind == 4 ? sendfile(fd[1], file, NULL, 10)
             : kind == 5 ? splice(other[0], NULL, fd[1], NULL, 1, 0)
                         : write(fd[1], "x", 1);
    int e = errno;
    close(file), close(other[0]), close(other[1]);
    for (int i = 0; i < 200; i++) sched_yield();
    sigset_t pending;
    sigpending(&pending);
    int is = sigismember(&pending, SIGPIPE);
    struct timespec none = {0, 0};
    siginfo_t info = {0};
    int taken = p ? sigtimedwait(&s, &info, &none) : 0;
    printf("%s: kind %d: %ld %s, handled %d, pending %d, taken %d %d\n", p ? "blocked" : "open", kind, r, name(e), handled, is, taken,
           taken > 0 && info.si_pid == getpid());
    close(fd[1]);
  }
  return NULL;
}

// ---- a terminal that does not wait ----
static void* reads_terminal(void* p) {
  int master = posix_openpt(O_RDWR | O_NOCTTY);
  assert(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  int fd = open(ptsname(master), O_RDWR | O_NOCTTY);
  struct termios t;
  assert(fd >= 0 && tcgetattr(fd, &t) == 0);
  cfmakeraw(&t);
  t.c_cc[VMIN] = 0;
  for (int tenths = 0; tenths < 2; tenths++) {
    t.c_cc[VTIME] = (cc_t)tenths;
    assert(tcsetattr(fd, TCSANOW, &t) == 0);
    char c;
    printf("VMIN 0, VTIME %d: %zd\n", tenths, read(fd, &c, 1));
  }
  close(fd);
  close(master);
  return p;
}

// ---- reset behind a part ----
static int listening;
static void* resets(void* p) {
  int fd = accept(listening, NULL, NULL);
  assert(fd >= 0);
  char some[4096];
  assert(read(fd, some, sizeof some) > 0);
  usleep(100000);
  struct linger now = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
  return p;
}
static void* writes_much(void* p) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof a;
  listening = socket(AF_INET, SOCK_STREAM, 0);
  assert(bind(listening, (void*)&a, sizeof a) == 0 && listen(listening, 1) == 0 && getsockname(listening, (void*)&a, &size) == 0);
  pthread_t t;
  pthread_create(&t, NULL, resets, NULL);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert(connect(fd, (void*)&a, sizeof a) == 0);
  size_t much = 64 << 20;
  char* data = calloc(1, much);
  handled = 0;
  long r = p ? send(fd, data, much, 0) : write(fd, data, much);
  printf("a part: %d", r > 0 && r < (long)much);
  r = write(fd, data, 1);
  printf(", then %ld %s, handled %d", r, name(errno), handled);
  r = write(fd, data, 1);
  printf(", then %ld %s, handled %d\n", r, name(errno), handled);
  pthread_join(t, NULL);
  free(data);
  close(fd);
  close(listening);
  return NULL;
}

// ---- times and descriptors of calls that the library makes in several parts ----
static int parts[2];
static void* sends_slowly(void* p) {
  for (int i = 0; i < 20; i++) {
    usleep(100000);
    if (send(parts[1], "x", 1, MSG_NOSIGNAL) != 1) break;
  }
  return p;
}
static void* reads_slowly(void* p) {
  static char some[8192];
  for (int i = 0; i < 40; i++) {
    usleep(50000);
    if (recv(parts[1], some, sizeof some, MSG_DONTWAIT) == 0) break;
  }
  return p;
}
static void* times_out(void* p) {
  pthread_t t;
  struct timeval wait = {0, 300000};
  static char data[4 << 20];
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, parts) == 0);
  setsockopt(parts[0], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  setsockopt(parts[0], SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
  pthread_create(&t, NULL, p ? reads_slowly : sends_slowly, NULL);
  // The time limit is for the whole call, however often data comes.
  long r = p ? write(parts[0], data, sizeof data) : recv(parts[0], data, 20, MSG_WAITALL);
  printf("%s in parts: %d\n", p ? "sent" : "received", p ? r > 0 && r < 300000 + 40 * 8192 : r < 20);
  shutdown(parts[0], SHUT_RDWR);
  pthread_join(t, NULL);
  close(parts[0]), close(parts[1]);
  return NULL;
}
static void pass(int fd, const char* text, int passed) {
  char room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {(void*)text, strlen(text)};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr* c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(c), &passed, sizeof passed);
  assert(sendmsg(fd, &m, 0) == (ssize_t)strlen(text));
}
static void* passes(void* p) {
  int fd = parts[1];
  for (int i = 0; i < 3; i++) {
    if (p) usleep(20000);
    assert(write(fd, "ab", 2) == 2);
    if (p) usleep(20000);
    pass(fd, "cd", fd);
    if (p) usleep(20000);
    assert(write(fd, "ef", 2) == 2);
  }
  return p;
}
static void* receives_passed(void* p) {
  pthread_t t;
  char data[16];
  int one = 1;
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, parts) == 0);
  pthread_create(&t, NULL, passes, p);
  if (!p) pthread_join(t, NULL);
  for (int i = 0; i < 3; i++) {
    char room[CMSG_SPACE(sizeof(int) * 4)];
    struct iovec v = {data, 5};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = i ? NULL : room, .msg_controllen = i ? 0 : sizeof room};
    ssize_t r = i == 2 ? recv(parts[0], data, 5, MSG_WAITALL) : recvmsg(parts[0], &m, MSG_WAITALL);
    struct cmsghdr* c = i ? NULL : CMSG_FIRSTHDR(&m);
    int got = -1;
    if (c) memcpy(&got, CMSG_DATA(c), sizeof got);
    printf("all of 5%s: %zd %.4s, descriptor %d, truncated %d",
           i == 0   ? ""
           : i == 1 ? ", no room"
                    : " by recv",
           r, data, got >= 0 && fcntl(got, F_GETFD) >= 0, i < 2 && m.msg_flags & MSG_CTRUNC);
    if (got >= 0) close(got);
    r = recv(parts[0], data, 2, MSG_WAITALL);
    printf(", then %zd %.2s\n", r, data);
  }
  // Credentials are not descriptors, so they do not end the call.
  setsockopt(parts[0], SOL_SOCKET, SO_PASSCRED, &one, sizeof one);
  assert(write(parts[1], "12", 2) == 2 && write(parts[1], "34", 2) == 2 && write(parts[1], "5", 1) == 1);
  printf("with credentials: %zd\n", recv(parts[0], data, 5, MSG_WAITALL));
  if (p) pthread_join(t, NULL);
  close(parts[0]), close(parts[1]);
  return NULL;
}

// ---- a signal that only a mask lets in ----
static volatile int polling;
static int gate_of_polls(void) {
  static int fd[2];
  if (!fd[1]) assert(pipe(fd) == 0);
  return fd[0];
}
static void* polls(void* p) {
  sigset_t none;
  struct pollfd f = {gate_of_polls(), POLLIN, 0};
  sigemptyset(&none);
  polling = 1;
  int r = ppoll(&f, 1, NULL, &none);
  printf("ppoll: %d %s, handled %d\n", r, name(errno), handled);
  return p;
}
static void* let_in(void* p) {
  sigset_t s;
  pthread_t t;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR2);
  pthread_create(&t, NULL, polls, NULL);  // all threads block the signal
  while (!polling) usleep(1000);
  if (p) usleep(30000);
  handled = 0;
  kill(getpid(), SIGUSR2);
  pthread_join(t, NULL);
  polling = 0;
  return p;
}

// ---- flags by number ----
static void* late(void* p) {
  usleep(20000);
  assert(write(*(int*)p, "x", 1) == 1);
  return NULL;
}
static void* flags_by_number(void* p) {
  int fd[2];
  char c;
  pthread_t t;
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, fd) == 0);
  pthread_create(&t, NULL, late, &fd[1]);
  assert(read(fd[0], &c, 1) == 1);
  pthread_join(t, NULL);
  syscall(SYS_fcntl, fd[0], F_SETFL, O_NONBLOCK);
  ssize_t r = read(fd[0], &c, 1);
  printf("non-blocking by number: %zd %s\n", r, name(errno));
  return p;
}

// ---- processes ----
static void* forks(void* p) {
  int right = 0;
  for (int i = 0; i < 50; i++) {
    handled = 0;
    pid_t pid = fork();
    if (pid == 0) {
      for (int k = 0; k < 10000 && !handled; k++) usleep(1000);
      _exit(handled ? 7 : 1);
    }
    kill(pid, SIGUSR1);
    int status;
    while (waitpid(pid, &status, 0) < 0) assert(errno == EINTR);
    right += WIFEXITED(status) && WEXITSTATUS(status) == 7;
  }
  printf("signals to new children: %d\n", right);
  return p;
}
static int gate[2];
static int cloned(void* p) {
  char c;
  return read(gate[0], &c, 1) == 1 && c == 'g' && p == gate ? 9 : 1;
}
static void* clones(void* p) {
  static char stack[65536] __attribute__((aligned(16)));
  assert(pipe(gate) == 0);
  pid_t pid = clone(cloned, stack + sizeof stack, SIGCHLD, gate);
  assert(pid > 0);
  usleep(20000);
  assert(write(gate[1], "g", 1) == 1);
  int status;
  while (waitpid(pid, &status, 0) < 0) assert(errno == EINTR);
  printf("clone: %d %d\n", WIFEXITED(status), WEXITSTATUS(status));
  return p;
}

static void run(void* (*what)(void*), void* p) {
  pthread_t t;
  pthread_create(&t, NULL, what, p);
  pthread_join(t, NULL);
}

int main() {
  alarm(200);
  struct sigaction a = {.sa_handler = count};
  sigaction(SIGPIPE, &a, NULL);
  sigaction(SIGUSR1, &a, NULL);
  sigaction(SIGUSR2, &a, NULL);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &blocked, NULL);
  pthread_t by[3];
  for (int i = 0; i < 3; i++) pthread_create(&by[i], NULL, bystander, NULL);
  run(breaks, (void*)&stop);
  run(breaks, NULL);
  run(reads_terminal, NULL);
  run(writes_much, NULL);
  run(writes_much, (void*)&stop);
  run(times_out, NULL);
  run(times_out, (void*)&stop);
  run(receives_passed, NULL);
  run(receives_passed, (void*)&stop);
  run(let_in, NULL);
  run(let_in, (void*)&stop);
  run(flags_by_number, NULL);
  run(clones, NULL);
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(by[i], NULL);
  run(forks, NULL);
  return 0;
}
