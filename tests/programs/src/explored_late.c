// SPDX-License-Identifier: MIT
// Under exploration, these need a second kernel thread of the library's, which has not begun when the process does. Argument: the case. Prints what
// must be the same in all schedules.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t told, ready, seen;
static int ends[2];
static FILE* from;
static int counted;

static void count(void) {
  for (int i = 0; i < 5; i++) {
    pthread_mutex_lock(&lock);
    counted++;
    pthread_mutex_unlock(&lock);
  }
}
static sigset_t usr1(void) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR1);
  return s;
}
static sigset_t alarm_signal(void) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGALRM);
  return s;
}
static void on_signal(int sig) { sem_post(&told); }

// libc's own read() in here is no call that the library knows.
static void* reads_line(void* p) {
  char line[16];
  assert(fgets(line, sizeof line, from) && !strcmp(line, "line\n"));
  count();
  return p;
}
static void* writes_line(void* p) {
  count();
  assert(write(ends[1], "line\n", 5) == 5);
  return p;
}

// Nor is a call by an instruction of the program's own.
static void* waits_raw(void* p) {
  char c;
#ifdef __x86_64__
  long result;
  do __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_read), "D"(ends[0]), "S"(&c), "d"(1) : "rcx", "r11", "memory");
  while (result == -EINTR);
#else
  long result = read(ends[0], &c, 1);
#endif
  assert(result == 1);
  count();
  return p;
}
static void* writes_late(void* p) {
  sem_wait(&ready);
  return writes_line(p);
}
static void* raises_later(void* p) {
  sem_post(&ready);
  count();
  return p;
}

static void* goes_on(void* p) {
  while (sem_trywait(&told) != 0) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
  }
  sem_post(&seen);
  return p;
}

// Main lets the signal in and waits in a join. This thread blocks it, and goes on until the handler has run.
static void* blocks_alarm(void* p) {
  sigset_t s = alarm_signal();
  struct itimerval t = {{0, 0}, {0, 2000}};
  if (!p) assert(pthread_sigmask(SIG_BLOCK, &s, NULL) == 0);
  count();
  assert(setitimer(ITIMER_REAL, &t, NULL) == 0);
  goes_on(NULL);
  return p;
}

// The next two threads come to more points than make a livelock. Their loops are ended from outside: by an alarm, and by a child.
static void* goes_on_for_alarm(void* p) {
  struct itimerval t = {{0, 0}, {0, 300000}};
  assert(setitimer(ITIMER_REAL, &t, NULL) == 0);
  return goes_on(p);
}
static void* goes_on_for_child(void* p) {
  int* turns = mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(turns != MAP_FAILED);
  pid_t pid = fork();
  if (pid == 0) {
    while (__atomic_load_n(turns, __ATOMIC_RELAXED) < 1000000) sched_yield();
    _exit(3);
  }
  while (waitpid(pid, NULL, WNOHANG) == 0) {
    __atomic_fetch_add(turns, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
  }
  return p;
}

static void* waits_for_child(void* p) {
  pid_t pid = fork();
  if (pid == 0) _exit(3);
  int status;
  assert(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
  return p;
}

static void* binds_itself(void* p) {
  cpu_set_t set;
  assert(sched_getaffinity(0, sizeof set, &set) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &set)) first++;
  CPU_ZERO(&set);
  CPU_SET(first, &set);
  assert(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
  count();
  return p;
}

static void* waits_for_alarm(void* p) {
  struct itimerval t = {{0, 0}, {0, 5000}};
  assert(setitimer(ITIMER_REAL, &t, NULL) == 0);
  while (sem_wait(&told) != 0) assert(errno == EINTR);
  return p;
}

static void* waits_for_timer(void* p) {
  struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
  timer_t timer;
  struct itimerspec t = {{0, 0}, {0, 5000000}};
  assert(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0 && timer_settime(timer, 0, &t, NULL) == 0);
  while (sem_wait(&told) != 0) assert(errno == EINTR);
  return p;
}

// The signal comes while the other thread runs.
static void* has_own_timer(void* p) {
  struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
  timer_t timer;
  struct itimerspec t = {{0, 0}, {0, 2000000}};
  e._sigev_un._tid = gettid();
  assert(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0 && timer_settime(timer, 0, &t, NULL) == 0);
  while (sem_wait(&seen) != 0) assert(errno == EINTR);
  return p;
}
static void* takes_signal(void* p) {
  sigset_t s = usr1();
  siginfo_t info;
  while (sigwaitinfo(&s, &info) < 0) assert(errno == EINTR);
  count();
  return p;
}
static void* sends_signal(void* p) {
  count();
  kill(getpid(), SIGUSR1);
  return p;
}

static void* looks_for_itself(void* p) {
  struct sched_param param;
  cpu_set_t set;
  int policy;
  assert(pthread_getschedparam(pthread_self(), &policy, &param) == 0 && policy == SCHED_OTHER);
  assert(sched_getaffinity(gettid(), sizeof set, &set) == 0 && CPU_COUNT(&set) > 0);
  int fd = (int)syscall(SYS_pidfd_open, gettid(), 0);  // the kernel refuses it for a thread that is not the first
  assert(fd < 0);
  count();
  return p;
}

int main(int argc, char** argv) {
  const char* what = argv[1];
  void* (*one)(void*) = NULL, *(*other)(void*) = NULL;
  void* p = NULL;
  sem_init(&told, 0, 0);
  sem_init(&ready, 0, 0);
  sem_init(&seen, 0, 0);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  signal(SIGUSR1, on_signal);
  signal(SIGALRM, on_signal);
  if (!strcmp(what, "line")) one = reads_line, other = writes_line;
  if (!strcmp(what, "raw")) one = waits_raw, other = writes_late;
  if (!strcmp(what, "mask")) one = blocks_alarm, other = raises_later;
  if (!strcmp(what, "attr")) one = blocks_alarm, other = raises_later, p = &told;
  if (!strcmp(what, "child")) one = waits_for_child, other = raises_later;
  if (!strcmp(what, "bound")) one = other = binds_itself;
  if (!strcmp(what, "alarm")) one = waits_for_alarm, other = raises_later;
  if (!strcmp(what, "timer")) one = waits_for_timer, other = raises_later;
  if (!strcmp(what, "own")) one = has_own_timer, other = goes_on;
  if (!strcmp(what, "sigwait")) one = takes_signal, other = sends_signal;
  if (!strcmp(what, "itself")) one = other = looks_for_itself;
  if (!strcmp(what, "long")) one = goes_on_for_alarm, other = raises_later;
  if (!strcmp(what, "poll")) one = goes_on_for_child, other = raises_later;
  sigset_t s = usr1(), a = alarm_signal();
  if (p) pthread_attr_setsigmask_np(&attr, &a);
  if (!strcmp(what, "sigwait")) pthread_sigmask(SIG_BLOCK, &s, NULL);
  pthread_t t[3];
  pthread_create(&t[2], NULL, raises_later, NULL);
  assert(pipe(ends) == 0 && (from = fdopen(ends[0], "r")));  // not before the first thread: the process would not be forked
  pthread_create(&t[0], &attr, one, p);
  pthread_create(&t[1], NULL, other, NULL);
  for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
  printf("%s: %d\n", what, counted);
  return 0;
}
