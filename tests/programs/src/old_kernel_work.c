// SPDX-License-Identifier: MIT
// Uses a part of everything for which the library needs more system calls than libc. The output is the same on any kernel, or has the
// answers to the program's own calls.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static const char* said(long r) { return r >= 0 ? "done" : strerror(errno); }

// ---- births: stacks, guards, blocks made ahead ----

static void* adds(void* p) {
  char page[20000];
  memset(page, 1, sizeof page);
  atomic_fetch_add((atomic_int*)p, page[(long)p % 4096]);
  return p;
}
static void births() {
  enum { kThreads = 400 };
  static pthread_t t[kThreads];
  static atomic_int sum;
  int failed = 0;
  for (int i = 0; i < kThreads; i++) failed += pthread_create(&t[i], NULL, adds, &sum) != 0;
  for (int i = 0; i < kThreads - failed; i++) pthread_join(t[i], NULL);
  printf("births: %d of %d\n", sum, kThreads - failed);
  if (failed) exit(3);  // libc makes no threads if clone3() fails with anything other than ENOSYS
}
static void* overflows(void* p) {
  volatile char here[4096];
  here[0] = 1;
  return overflows((void*)&here[1]) + here[0];
}
static void* looks_below(void* p) {
  pthread_attr_t attr;
  void* low;
  size_t size;
  int ends[2];
  if (pthread_getattr_np(pthread_self(), &attr) || pthread_attr_getstack(&attr, &low, &size) || pipe(ends)) exit(1);
  long r = write(ends[1], (char*)low - 1, 1);  // the kernel reads the byte, and would fail with EFAULT
  printf("below the stack: %s\n", said(r));
  return p;
}
static void guard() {
  pthread_t below;
  pthread_create(&below, NULL, looks_below, NULL);
  pthread_join(below, NULL);
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t t;
    fclose(stderr);
    pthread_create(&t, NULL, overflows, NULL);
    pthread_join(t, NULL);
    _exit(0);
  }
  int status;
  waitpid(pid, &status, 0);
  printf("overflow: signal %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

// ---- descriptors ----

static int ends[2], wires[2];
static void* echoes(void* p) {
  char b;
  while (read(ends[1], &b, 1) == 1 && write(ends[1], &b, 1) == 1) {
  }
  return p;
}
static void* copies(void* p) {
  char b[16];
  long n = 0, r;
  while ((r = read(wires[0], b, sizeof b)) > 0) n += r;
  return (void*)n;
}
static void descriptors() {
  pthread_t t, u;
  int good = 0;
  void* n;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || pipe(wires)) exit(1);
  pthread_create(&t, NULL, echoes, NULL);
  pthread_create(&u, NULL, copies, NULL);
  for (int i = 0; i < 200; i++) {
    char b = 'x';
    good += write(ends[0], &b, 1) == 1 && read(ends[0], &b, 1) == 1;
    good += write(wires[1], "0123456789", 10) == 10;
  }
  struct epoll_event e = {EPOLLIN, {0}};
  int ep = epoll_create1(EPOLL_CLOEXEC);
  epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &e);
  printf("epoll_wait %d ", epoll_wait(ep, &e, 1, 5));
  struct timespec ms = {0, 5000000};
  printf("epoll_pwait2 %s\n", said(syscall(441, ep, &e, 1, &ms, NULL, 8)));
  close(ep);
  close(ends[0]);
  close(wires[1]);
  pthread_join(t, NULL);
  pthread_join(u, &n);
  printf("descriptors: %d %ld\n", good, (long)n);
  FILE* f = tmpfile();
  static char block[1 << 16];
  fwrite(block, 1, sizeof block, f);
  fflush(f);
  good = 0;
  for (int i = 0; i < 64; i++) good += pread(fileno(f), block, 1024, i * 1024) == 1024;
  fclose(f);
  printf("file: %d\n", good);
}
static void* accepts(void* p) {
  for (int i = 0; i < 20; i++) {
    int fd = accept((int)(long)p, NULL, NULL);
    if (fd < 0 || write(fd, "y", 1) != 1) return NULL;
    close(fd);
  }
  return p;
}
static void* connects(void* p) {
  long good = 0;
  for (int i = 0; i < 10; i++) {
    char b = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    good += connect(fd, (struct sockaddr*)p, sizeof(struct sockaddr_in)) == 0 && read(fd, &b, 1) == 1 && b == 'y';
    close(fd);
  }
  return (void*)good;
}
static void connections() {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(fd, (struct sockaddr*)&a, size) || listen(fd, 16) || getsockname(fd, (struct sockaddr*)&a, &size)) exit(1);
  pthread_t s, t[2];
  void *v, *w;
  pthread_create(&s, NULL, accepts, (void*)(long)fd);
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, connects, &a);
  pthread_join(t[0], &v);
  pthread_join(t[1], &w);
  pthread_join(s, NULL);
  printf("connections: %ld\n", (long)v + (long)w);
  close(fd);
}

// ---- threads that sleep in the kernel, and threads that compute ----

static atomic_int asleep, stop, spinning;
static void* sleeps(void* p) {
  asleep++;
  return (void*)(long)fgetc((FILE*)p);  // in libc's own read
}
static void* spins(void* p) {
  spinning++;
  while (!stop) {
  }
  return p;
}
static void workers() {
  enum { kSleepers = 20, kSpinners = 6 };
  pthread_t t[kSleepers], s[kSpinners];
  int held[kSleepers][2], sum = 0;
  FILE* f[kSleepers];
  for (int i = 0; i < kSleepers; i++) {
    if (pipe(held[i])) exit(1);
    f[i] = fdopen(held[i][0], "r");
    pthread_create(&t[i], NULL, sleeps, f[i]);
  }
  while (asleep < kSleepers) usleep(1000);
  for (int i = 0; i < kSpinners; i++) pthread_create(&s[i], NULL, spins, NULL);
  while (spinning < kSpinners) {
  }
  stop = 1;
  for (int i = 0; i < kSpinners; i++) pthread_join(s[i], NULL);
  for (int i = 0; i < kSleepers; i++) {
    void* r;
    if (write(held[i][1], "x", 1) == 1 && pthread_join(t[i], &r) == 0) sum += (long)r == 'x';
    fclose(f[i]);
    close(held[i][1]);
  }
  printf("woken: %d\n", sum);
}

// ---- time, signals, processes ----

static struct timespec after(clockid_t clock, long ns) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ns;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}
static void* times(void* p) {
  struct timespec t = after(CLOCK_REALTIME, 3000000);
  pthread_mutex_lock(&m);
  int a = pthread_cond_timedwait(&c, &m, &t);
  t = after(CLOCK_MONOTONIC, 3000000);
  int b = pthread_cond_clockwait(&c, &m, CLOCK_MONOTONIC, &t);
  pthread_mutex_unlock(&m);
  t = after(CLOCK_REALTIME, 3000000);
  int d = clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
  return (void*)(long)(a == ETIMEDOUT && b == ETIMEDOUT && d == 0 && usleep(2500) == 0);
}
static atomic_int caught;
static void catches(int sig) { caught += sig == SIGUSR1; }
static void* waits(void* p) {
  asleep++;
  sleep(100);
  return p;
}
static void* forks(void* p) {
  pid_t pid = fork();
  if (pid == 0) {
    pthread_t t;
    void* r;
    pthread_create(&t, NULL, times, NULL);
    pthread_join(t, &r);
    _exit(r ? 7 : 8);
  }
  int status;
  waitpid(pid, &status, 0);
  return (void*)(long)WEXITSTATUS(status);
}
static void others() {
  enum { kThreads = 8 };
  pthread_t t[kThreads];
  void* r;
  long sum = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, times, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], &r), sum += (long)r;
  printf("times: %ld\n", sum);
  struct sigaction sa = {.sa_handler = catches};
  sigaction(SIGUSR1, &sa, NULL);
  asleep = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, waits, NULL);
  while (asleep < kThreads) usleep(1000);
  usleep(20000);
  for (int i = 0; i < kThreads; i++) pthread_kill(t[i], SIGUSR1), pthread_join(t[i], NULL);
  printf("signals: %d\n", caught);
  sum = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, forks, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], &r), sum += (long)r;
  printf("forks: %ld\n", sum);
  int pidfd = syscall(434, getpid(), 0);
  printf("pidfd: %s\n", said(pidfd));
  int high = fcntl(0, F_DUPFD, 300);
  printf("close_range: %s", said(close_range(high, high, 0)));
  high = fcntl(0, F_DUPFD, 300);
  closefrom(high);
  printf(", closefrom: %d\n", fcntl(high, F_GETFD));
}

static void* last(void* p) {
  usleep(2000);
  return p;
}
int main() {
  setvbuf(stdout, NULL, _IONBF, 0);
  births();
  guard();
  descriptors();
  connections();
  workers();
  others();
  births();
  // The last thread ends the process.
  pthread_t t;
  for (int i = 0; i < 20; i++)
    if (pthread_create(&t, NULL, last, NULL) == 0) pthread_detach(t);
  pthread_exit(NULL);
}
