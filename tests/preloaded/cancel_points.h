// SPDX-License-Identifier: MIT
// Every cancellation point of POSIX that libc has, as a call with what it waits for, and some calls that are none.
#pragma once
#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "queues.h"

static int pipe_fds[2], full_pipe[2], pair[2], full_pair[2], listener, locked_file, regular, semaphores;
static char fifo[] = "fifo", memory[65536];
static sem_t never_posted;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static mtx_t c_mutex;
static cnd_t c_cond;
static pthread_t endless;
static pid_t child;
static sigset_t usr1;

static timespec later() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += 100;
  return t;
}
const timespec long_time = {100, 0};

static void* sleeps_on(void*) {
  for (;;) pause();
}

static bool mutex_held_in_cleanup;
static void looks_at_mutex(void*) {
  // A normal mutex says EBUSY to its owner, too.
  mutex_held_in_cleanup = pthread_mutex_trylock(&mutex) == EBUSY;
  pthread_mutex_unlock(&mutex);
}

struct Case {
  const char* name;
  void (*call)();
  bool waits;  // the call waits for ever; otherwise it returns at once
};

const Case cases[] = {
    {"accept", [] { accept(listener, nullptr, nullptr); }, true},
    {"accept4", [] { accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); }, true},
    {"aio_suspend",
     [] {
       static aiocb cb;
       cb.aio_fildes = pipe_fds[0];
       cb.aio_buf = memory;
       cb.aio_nbytes = 1;
       cb.aio_sigevent.sigev_notify = SIGEV_NONE;
       static bool once = aio_read(&cb) == 0;
       const aiocb* list[] = {&cb};
       if (once) aio_suspend(list, 1, nullptr);
     },
     true},
    {"clock_nanosleep", [] { clock_nanosleep(CLOCK_MONOTONIC, 0, &long_time, nullptr); }, true},
    {"clock_nanosleep absolute",
     [] {
       timespec t = later();
       clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, nullptr);
     },
     true},
    {"close", [] { close(dup(1)); }, false},
    {"connect",
     [] {
       sockaddr_un a = {AF_UNIX, ""};
       connect(pair[0], (sockaddr*)&a, sizeof a);
     },
     false},
    {"creat", [] { close(creat("made", 0600)); }, false},
    {"fcntl F_SETLKW",
     [] {
       struct flock l = {};
       l.l_type = F_WRLCK;
       fcntl(locked_file, F_SETLKW, &l);
     },
     true},
    {"fcntl F_OFD_SETLKW",
     [] {
       struct flock l = {};
       l.l_type = F_WRLCK;
       l.l_start = 10;
       l.l_len = 1;
       fcntl(locked_file, F_OFD_SETLKW, &l);
     },
     true},
    {"fdatasync", [] { fdatasync(regular); }, false},
    {"fsync", [] { fsync(regular); }, false},
    {"lockf", [] { lockf(locked_file, F_LOCK, 0); }, true},
    {"mq_receive", [] { mq_receive(mq_empty, memory, sizeof memory, nullptr); }, true},
    {"mq_timedreceive",
     [] {
       timespec t = later();
       mq_timedreceive(mq_empty, memory, sizeof memory, nullptr, &t);
     },
     true},
    {"mq_send", [] { mq_send(mq_full, "x", 1, 0); }, true},
    {"mq_timedsend",
     [] {
       timespec t = later();
       mq_timedsend(mq_full, "x", 1, 0, &t);
     },
     true},
    {"msgrcv",
     [] {
       message m;
       msgrcv(queue, &m, sizeof m.text, 0, 0);
     },
     true},
    {"msgsnd",
     [] {
       message m = {1, {}};
       msgsnd(full_queue, &m, sizeof m.text, 0);
     },
     true},
    {"msync", [] { msync(memory, 0, MS_SYNC); }, false},
    {"nanosleep", [] { nanosleep(&long_time, nullptr); }, true},
    {"open", [] { close(open("regular", O_RDONLY)); }, false},
    {"open of a FIFO", [] { close(open(fifo, O_RDONLY)); }, true},
    {"openat of a FIFO", [] { close(openat(AT_FDCWD, fifo, O_WRONLY)); }, true},
    {"pause", [] { pause(); }, true},
    {"poll",
     [] {
       pollfd p = {pipe_fds[0], POLLIN, 0};
       poll(&p, 1, -1);
     },
     true},
    {"ppoll",
     [] {
       pollfd p = {pipe_fds[0], POLLIN, 0};
       sigset_t none;
       sigemptyset(&none);
       ppoll(&p, 1, nullptr, &none);
     },
     true},
    {"pread", [] { pread(regular, memory, 1, 0); }, false},
    {"pselect",
     [] {
       fd_set s;
       FD_ZERO(&s);
       FD_SET(pipe_fds[0], &s);
       pselect(pipe_fds[0] + 1, &s, nullptr, nullptr, nullptr, nullptr);
     },
     true},
    {"pthread_cond_timedwait",
     [] {
       timespec t = later();
       pthread_mutex_lock(&mutex);
       pthread_cleanup_push(looks_at_mutex, nullptr);
       pthread_cond_timedwait(&cond, &mutex, &t);
       pthread_cleanup_pop(0);
       pthread_mutex_unlock(&mutex);
     },
     true},
    {"pthread_cond_wait",
     [] {
       pthread_mutex_lock(&mutex);
       pthread_cleanup_push(looks_at_mutex, nullptr);
       pthread_cond_wait(&cond, &mutex);
       pthread_cleanup_pop(0);
       pthread_mutex_unlock(&mutex);
     },
     true},
    {"pthread_cond_clockwait",
     [] {
       timespec t;
       clock_gettime(CLOCK_MONOTONIC, &t);
       t.tv_sec += 100;
       pthread_mutex_lock(&mutex);
       pthread_cleanup_push(looks_at_mutex, nullptr);
       pthread_cond_clockwait(&cond, &mutex, CLOCK_MONOTONIC, &t);
       pthread_cleanup_pop(0);
       pthread_mutex_unlock(&mutex);
     },
     true},
    {"cnd_wait",
     [] {
       mtx_lock(&c_mutex);
       pthread_cleanup_push(
           [](void*) {
             mutex_held_in_cleanup = mtx_trylock(&c_mutex) == thrd_busy;
             mtx_unlock(&c_mutex);
           },
           nullptr);
       cnd_wait(&c_cond, &c_mutex);
       pthread_cleanup_pop(0);
       mtx_unlock(&c_mutex);
     },
     true},
    {"pthread_join", [] { pthread_join(endless, nullptr); }, true},
    {"pthread_timedjoin_np",
     [] {
       timespec t = later();
       pthread_timedjoin_np(endless, nullptr, &t);
     },
     true},
    {"pthread_testcancel", [] { pthread_testcancel(); }, false},
    {"pwrite", [] { pwrite(regular, "x", 1, 0); }, false},
    {"read", [] { read(pipe_fds[0], memory, 1); }, true},
    {"readv",
     [] {
       iovec v = {memory, 1};
       readv(pipe_fds[0], &v, 1);
     },
     true},
    {"recv", [] { recv(pair[0], memory, 1, 0); }, true},
    {"recvfrom", [] { recvfrom(pair[0], memory, 1, 0, nullptr, nullptr); }, true},
    {"recvmsg",
     [] {
       iovec v = {memory, 1};
       msghdr m = {};
       m.msg_iov = &v;
       m.msg_iovlen = 1;
       recvmsg(pair[0], &m, 0);
     },
     true},
    {"recvmmsg",
     [] {
       iovec v = {memory, 1};
       mmsghdr m = {};
       m.msg_hdr.msg_iov = &v;
       m.msg_hdr.msg_iovlen = 1;
       recvmmsg(pair[0], &m, 1, 0, nullptr);
     },
     true},
    {"select",
     [] {
       fd_set s;
       FD_ZERO(&s);
       FD_SET(pipe_fds[0], &s);
       select(pipe_fds[0] + 1, &s, nullptr, nullptr, nullptr);
     },
     true},
    {"epoll_wait",
     [] {
       static int e = epoll_create1(0);
       epoll_event event;
       epoll_wait(e, &event, 1, -1);
     },
     true},
    {"sem_wait", [] { sem_wait(&never_posted); }, true},
    {"sem_timedwait",
     [] {
       timespec t = later();
       sem_timedwait(&never_posted, &t);
     },
     true},
    {"sem_clockwait",
     [] {
       timespec t = later();
       sem_clockwait(&never_posted, CLOCK_REALTIME, &t);
     },
     true},
    {"semop",
     [] {
       sembuf b = {0, -1, 0};
       semop(semaphores, &b, 1);
     },
     false},
    {"send", [] { send(full_pair[0], memory, sizeof memory, 0); }, true},
    {"sendmsg",
     [] {
       iovec v = {memory, sizeof memory};
       msghdr m = {};
       m.msg_iov = &v;
       m.msg_iovlen = 1;
       sendmsg(full_pair[0], &m, 0);
     },
     true},
    {"sendto", [] { sendto(full_pair[0], memory, sizeof memory, 0, nullptr, 0); }, true},
    {"sigpause", [] { sigpause(SIGUSR2); }, true},
    {"sigsuspend",
     [] {
       sigset_t none;
       sigemptyset(&none);
       sigsuspend(&none);
     },
     true},
    {"sigtimedwait", [] { sigtimedwait(&usr1, nullptr, &long_time); }, true},
    {"sigwait",
     [] {
       int sig;
       sigwait(&usr1, &sig);
     },
     true},
    {"sigwaitinfo", [] { sigwaitinfo(&usr1, nullptr); }, true},
    {"sleep", [] { sleep(100); }, true},
    {"usleep", [] { usleep(100'000'000); }, true},
    {"thrd_sleep", [] { thrd_sleep(&long_time, nullptr); }, true},
    {"system", [] { system("true"); }, false},
    {"system that lasts", [] { system("exec sleep 100"); }, true},
    {"tcdrain", [] { tcdrain(pipe_fds[0]); }, false},
    {"wait", [] { wait(nullptr); }, true},
    {"wait3", [] { wait3(nullptr, 0, nullptr); }, true},
    {"waitid",
     [] {
       siginfo_t i;
       waitid(P_PID, child, &i, WEXITED);
     },
     true},
    {"waitpid", [] { waitpid(child, nullptr, 0); }, true},
    {"write", [] { write(full_pipe[1], memory, sizeof memory); }, true},
    {"writev",
     [] {
       iovec v = {memory, sizeof memory};
       writev(full_pipe[1], &v, 1);
     },
     true},
    {"tee", [] { tee(pipe_fds[0], full_pipe[1], 1, 0); }, true},
    {"splice", [] { splice(pipe_fds[0], nullptr, full_pipe[1], nullptr, 1, 0); }, true},
    {"getaddrinfo",
     [] {
       addrinfo* a = nullptr;
       addrinfo hints = {};
       hints.ai_flags = AI_NUMERICHOST;
       if (getaddrinfo("127.0.0.1", nullptr, &hints, &a) == 0) freeaddrinfo(a);
     },
     false},
    {"printf",
     [] {
       static FILE* f = fopen("/dev/null", "w");
       setvbuf(f, nullptr, _IONBF, 0);
       fprintf(f, "x");
     },
     false},
    {"fgetc of a pipe",
     [] {
       FILE* f = fdopen(dup(pipe_fds[0]), "r");
       fgetc(f);
     },
     true},
    {"opendir",
     [] {
       if (FILE* f = fopen("regular", "r")) fclose(f);
     },
     false},
    // Not cancellation points.
    {"pthread_mutex_lock",
     [] {
       pthread_mutex_lock(&mutex);
       pthread_mutex_unlock(&mutex);
     },
     false},
    {"sched_yield", [] { sched_yield(); }, false},
    {"syscall", [] { syscall(SYS_getppid); }, false},
    {"gettid", [] { gettid(); }, false},
};

// Makes what the calls wait for. A child holds a lock until it is killed.
static void prepare() {
  char directory[] = "points-XXXXXX";
  assert(mkdtemp(directory) && chdir(directory) == 0);
  assert(pipe(pipe_fds) == 0 && pipe(full_pipe) == 0);
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, full_pair) == 0);
  fcntl(full_pipe[1], F_SETFL, O_NONBLOCK);
  while (write(full_pipe[1], memory, sizeof memory) > 0) {
  }
  fcntl(full_pipe[1], F_SETFL, 0);
  while (send(full_pair[0], memory, sizeof memory, MSG_DONTWAIT) > 0) {
  }
  listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a = {};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert(bind(listener, (sockaddr*)&a, sizeof a) == 0 && listen(listener, 5) == 0);
  regular = open("regular", O_RDWR | O_CREAT, 0600);
  locked_file = open("locked", O_RDWR | O_CREAT, 0600);
  assert(mkfifo(fifo, 0600) == 0);
  open_queues();
  semaphores = semget(IPC_PRIVATE, 1, 0600);
  sembuf up = {0, 1000, 0};
  semop(semaphores, &up, 1);
  sem_init(&never_posted, 0, 0);
  mtx_init(&c_mutex, mtx_plain);
  cnd_init(&c_cond);
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, nullptr);
  int ready[2];
  assert(pipe(ready) == 0);
  child = fork();
  if (child == 0) {
    struct flock l = {};
    l.l_type = F_WRLCK;
    fcntl(locked_file, F_SETLK, &l);
    write(ready[1], "x", 1);
    for (;;) sleep(1000);
  }
  char c;
  read(ready[0], &c, 1);
  pthread_create(&endless, nullptr, sleeps_on, nullptr);
}
