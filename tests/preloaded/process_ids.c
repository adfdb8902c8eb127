// SPDX-License-Identifier: MIT
// A thread's id, as gettid() gives it, in the calls that take one: about its process, its capabilities, the files whose signals it gets, and
// events that count it.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

extern int capget(void* header, void* data);
extern int capset(void* header, const void* data);

static pthread_barrier_t barrier;
static atomic_int ids[2];
static _Thread_local volatile sig_atomic_t got;

static void handler(int sig, siginfo_t* info, void* context) { got = info->si_code; }

static void about_process(const char* whose, pid_t id) {
  struct rlimit own, limit = {0};
  getrlimit(RLIMIT_NOFILE, &own);
  int r = prlimit(id, RLIMIT_NOFILE, NULL, &limit);
  printf("%s: prlimit %d, %s\n", whose, r, limit.rlim_cur == own.rlim_cur ? "the process's" : "another");
  limit.rlim_cur = 0;
  r = (int)syscall(SYS_prlimit64, id, RLIMIT_NOFILE, NULL, &limit);
  printf("%s: prlimit64 by number %d, %s\n", whose, r, limit.rlim_cur == own.rlim_cur ? "the process's" : "another");
  printf("%s: group %d, session %d\n", whose, getpgid(id) == getpgrp(), getsid(id) == getsid(0));
  char from[8] = "abcdefg", to[8] = "";
  struct iovec there = {from, 8}, here = {to, 8};
  ssize_t n = process_vm_readv(id, &here, 1, &there, 1, 0);
  printf("%s: read %zd, %s\n", whose, n, to);
  n = process_vm_writev(id, &there, 1, &here, 1, 0);
  printf("%s: wrote %zd\n", whose, n);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, id};
  struct __user_cap_data_struct data[2] = {{0}}, mine[2] = {{0}};
  r = capget(&header, data);
  header.pid = 0;
  capget(&header, mine);
  printf("%s: capget %d, as mine %d\n", whose, r, memcmp(data, mine, sizeof data) == 0);
  header = (struct __user_cap_header_struct){1, id};
  r = capget(&header, NULL);
  printf("%s: capget of no version %d, then %d\n", whose, r, header.version == _LINUX_CAPABILITY_VERSION_3);
  r = (int)syscall(SYS_pidfd_open, id, 0);
  printf("%s: pidfd_open %d, %s\n", whose, r >= 0 ? 0 : r, r >= 0 ? "" : strerror(errno));
  if (r >= 0) close(r);
  if (id == getpid()) return;
  r = setpgid(id, 0);
  printf("%s: setpgid %d, %s\n", whose, r, strerror(errno));
  r = (int)syscall(SYS_setpgid, id, 0);
  printf("%s: setpgid by number %d, %s\n", whose, r, strerror(errno));
}

static sem_t told;
static void* waits_for_signal(void* p) {
  sigset_t user1, none;
  sigemptyset(&none);
  sigemptyset(&user1);
  sigaddset(&user1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &user1, NULL);
  ids[1] = gettid();
  sem_post(&told);
  sigsuspend(&none);
  printf("code %s\n", got == SI_USER ? "SI_USER" : got == SI_TKILL ? "SI_TKILL" : "?");
  sem_post(&told);
  sem_wait(p);
  return p;
}

// A descriptor for one thread sends it signals, and can be read when it has ended. Linux knows these from 6.9 on.
static void descriptor_of_thread(void) {
  static sem_t may_end;
  enum { kOneThread = O_EXCL, kSendSignal = 424 };  // PIDFD_THREAD, SYS_pidfd_send_signal
  sem_init(&may_end, 0, 0);
  sem_init(&told, 0, 0);
  pthread_t t;
  pthread_create(&t, NULL, waits_for_signal, &may_end);
  sem_wait(&told);
  int fd = (int)syscall(SYS_pidfd_open, ids[1], kOneThread);
  printf("PIDFD_THREAD: %s\n", fd >= 0 ? "opened" : strerror(errno));
  struct pollfd p = {fd, POLLIN, 0};
  printf("readable: %d\n", poll(&p, fd >= 0, 0));
  int sent = fd >= 0 ? (int)syscall(kSendSignal, fd, SIGUSR1, NULL, 0) : pthread_kill(t, SIGUSR1);
  sem_wait(&told);  // it prints meanwhile
  if (fd >= 0) printf("signal: %d\n", sent);
  printf("readable: %d\n", poll(&p, fd >= 0, 0));
  sem_post(&may_end);
  pthread_join(t, NULL);
  printf("readable after its end: %d\n", poll(&p, fd >= 0, fd >= 0 ? 60000 : 0));
  close(fd);
}

static void own_capabilities(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  capget(&header, data);
  header.pid = gettid();
  printf("capset of its own id: %d\n", capset(&header, data));
  header.pid = getpid();
  int r = capset(&header, data);
  printf("capset of another thread: %d, %s\n", r, strerror(errno));
}

static void files(void) {
  int ends[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  struct f_owner_ex owner = {F_OWNER_TID, gettid()}, now = {0};
  printf("F_SETOWN_EX %d\n", fcntl(ends[0], F_SETOWN_EX, &owner));
  int r = fcntl(ends[0], F_GETOWN_EX, &now);
  printf("F_GETOWN_EX %d: %s\n", r, now.type == F_OWNER_TID && now.pid == gettid() ? "this thread" : "?");
  fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK);
  for (int sig = 0; sig < 2; sig++) {
    fcntl(ends[0], F_SETSIG, sig ? SIGRTMIN + 1 : 0);
    for (int round = 0; round < 20; round++) {
      got = 0;
      send(ends[1], "x", 1, 0);
      while (!got) sched_yield();
      char c;
      recv(ends[0], &c, 1, 0);
    }
    printf("%s: on this thread, code %s\n", sig ? "F_SETSIG" : "SIGIO", got == SI_KERNEL ? "SI_KERNEL" : got == POLL_IN ? "POLL_IN" : "?");
  }
  owner = (struct f_owner_ex){F_OWNER_TID, 0x3ffffff0};
  r = fcntl(ends[0], F_SETOWN_EX, &owner);
  printf("F_SETOWN_EX of no thread: %d, %s\n", r, strerror(errno));
  r = fcntl(ends[0], F_SETOWN_EX, NULL);
  printf("F_SETOWN_EX of no address: %d, %s\n", r, strerror(errno));
  close(ends[0]);
  close(ends[1]);
}

// The event counts this thread's time, and nearly nothing of the other's.
static void events(pid_t id) {
  struct perf_event_attr attr = {.size = sizeof attr, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1};
  int fd = (int)syscall(SYS_perf_event_open, &attr, id, -1, -1, 0);
  if (fd < 0) {
    printf("perf_event_open: %s\n", strerror(errno));
    return;
  }
  uint64_t before = 0, after = 0;
  if (read(fd, &before, sizeof before) != sizeof before) printf("no event\n");
  volatile unsigned work = 0;
  struct timespec begin, end;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do {
    for (int i = 0; i < 10000; i++) work = work * 3 + 1;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  } while ((end.tv_sec - begin.tv_sec) * 1000000000L + end.tv_nsec - begin.tv_nsec < 50000000);
  if (read(fd, &after, sizeof after) != sizeof after) printf("no event\n");
  uint64_t counted = after - before;
  printf("perf_event_open: counts %s\n", counted > 25000000 && counted < 200000000 ? "this thread" : "something else");
  close(fd);
}

static void* thread(void* p) {
  int i = (int)(intptr_t)p;
  ids[i] = gettid();
  pthread_barrier_wait(&barrier);
  if (i == 0) {
    about_process("itself", gettid());
    about_process("main", getpid());
    about_process("the other", ids[1]);
    own_capabilities();
    files();
    events(0);
    events(gettid());
  }
  pthread_barrier_wait(&barrier);
  return p;
}

int main(void) {
  struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGIO, &sa, NULL);
  sigaction(SIGRTMIN + 1, &sa, NULL);
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_t t[2];
  for (int i = 0; i < 2; i++) assert(pthread_create(&t[i], NULL, thread, (void*)(intptr_t)i) == 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  sigaction(SIGUSR1, &sa, NULL);
  descriptor_of_thread();
  about_process("nobody", 0x3ffffff0);
  return 0;
}
