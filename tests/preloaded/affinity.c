// SPDX-License-Identifier: MIT
// Each thread has its own policy, affinity and nice value, which it inherits from its creator, and its own tid.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t met;
static pid_t tid_of_other;
static volatile int changed;
static cpu_set_t allowed, one;

static int same(const cpu_set_t* a, const cpu_set_t* b) { return CPU_EQUAL(a, b); }

static void* inherits(void* p) {
  cpu_set_t set;
  assert(pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0 && same(&set, p));
  assert(sched_getaffinity(0, sizeof set, &set) == 0 && same(&set, p));
  return NULL;
}

static int nice_of_kernel_thread(void) {
  char text[1000] = {0};
  FILE* f = fopen("/proc/thread-self/stat", "r");
  assert(f && fgets(text, sizeof text, f));
  fclose(f);
  int value = 0;
  // The name is followed by the state and 15 other values, and then by the nice value.
  assert(sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %d", &value) == 1);
  return value;
}

static void* other(void* p) {
  tid_of_other = gettid();
  pthread_barrier_wait(&met);
  // It computes meanwhile and comes last, so nothing but the change itself takes it to another CPU.
  while (!changed) {
  }
  for (volatile int i = 0; i < 100000; i++) {
  }
  pthread_barrier_wait(&met);  // now the main thread has changed this thread
  cpu_set_t set;
  assert(sched_getaffinity(0, sizeof set, &set) == 0 && same(&set, &one));
  assert(sched_getaffinity(gettid(), sizeof set, &set) == 0 && same(&set, &one));
  assert(sched_getscheduler(0) == SCHED_BATCH);
  assert(getpriority(PRIO_PROCESS, 0) == 18 && getpriority(PRIO_PROCESS, gettid()) == 18);
  for (int i = 0; i < 100; i++) {
    assert(CPU_ISSET(sched_getcpu(), &one));
    if (i % 10 == 0) sched_yield();
    if (i % 25 == 0) usleep(100);
  }
  assert(nice_of_kernel_thread() == 18);
  // A thread that this one creates now inherits these settings.
  pthread_t t;
  assert(pthread_create(&t, NULL, inherits, &one) == 0 && pthread_join(t, NULL) == 0);
  pthread_attr_t a;
  pthread_attr_init(&a);
  assert(pthread_attr_setaffinity_np(&a, sizeof allowed, &allowed) == 0);
  assert(pthread_create(&t, &a, inherits, &allowed) == 0 && pthread_join(t, NULL) == 0);
  pthread_attr_destroy(&a);
  pthread_barrier_wait(&met);
  return p;
}

static void* ends(void* p) {
  *(pid_t*)p = gettid();
  return NULL;
}

static int unprivileged(void) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_RTPRIO, &none);
  setrlimit(RLIMIT_NICE, &none);
  if (setresuid(1000, 1000, 1000) != 0) return 1;
  struct sched_param p = {10};
  int failed = pthread_setschedparam(pthread_self(), SCHED_FIFO, &p) != EPERM;
  failed |= sched_setscheduler(0, SCHED_RR, &p) != -1 || errno != EPERM;
  failed |= setpriority(PRIO_PROCESS, 0, -5) != -1 || errno != EACCES;
  failed |= setpriority(PRIO_PROCESS, 0, 19) != 0 || getpriority(PRIO_PROCESS, 0) != 19;
  return failed;
}
static void* in_thread(void* p) { return (void*)(long)unprivileged(); }

static void affinity_of(pthread_t t) {
  cpu_set_t set, none;
  CPU_ZERO(&none);
  assert(pthread_getaffinity_np(t, sizeof set, &set) == 0 && same(&set, &allowed));
  assert(pthread_setaffinity_np(t, sizeof none, &none) == EINVAL);
  assert(sched_setaffinity(tid_of_other, sizeof none, &none) == -1 && errno == EINVAL);
  assert(pthread_setaffinity_np(t, sizeof one, &one) == 0);
  assert(pthread_getaffinity_np(t, sizeof set, &set) == 0 && same(&set, &one));
  assert(sched_getaffinity(tid_of_other, sizeof set, &set) == 0 && same(&set, &one));
  memset(&set, 0, sizeof set);
  assert(syscall(SYS_sched_getaffinity, tid_of_other, sizeof set, &set) > 0 && same(&set, &one));
  char small[1];
  assert(sched_getaffinity(0, 1, (cpu_set_t*)small) == -1 && errno == EINVAL);
  // The main thread's own settings are unchanged.
  assert(sched_getaffinity(0, sizeof set, &set) == 0 && same(&set, &allowed));
}

static void policy_of(pthread_t t) {
  struct sched_param p = {0};
  int policy = -1;
  assert(pthread_getschedparam(t, &policy, &p) == 0 && policy == SCHED_OTHER && p.sched_priority == 0);
  assert(pthread_setschedparam(t, SCHED_BATCH, &p) == 0);
  assert(sched_getscheduler(tid_of_other) == SCHED_BATCH && sched_getscheduler(0) == SCHED_OTHER);
  assert(sched_getparam(tid_of_other, &p) == 0 && p.sched_priority == 0);
  assert(sched_setparam(tid_of_other, &p) == 0);
  p.sched_priority = 1;
  assert(pthread_setschedparam(t, SCHED_OTHER, &p) == EINVAL && sched_setscheduler(tid_of_other, SCHED_OTHER, &p) == -1 && errno == EINVAL);
  assert(pthread_setschedprio(t, 5) == EINVAL);
  assert(sched_setscheduler(0, -1, &p) == -1 && errno == EINVAL);
  assert(sched_setscheduler(-1, SCHED_OTHER, &p) == -1 && errno == EINVAL);
  assert(sched_getscheduler(999999999) == -1 && errno == ESRCH);
  struct timespec interval;
  assert(sched_rr_get_interval(tid_of_other, &interval) == 0);
}

// `usual`: the main thread's nice value.
static void nice_value_and_clock_of(pthread_t t, int usual) {
  assert(setpriority(PRIO_PROCESS, tid_of_other, 18) == 0 && getpriority(PRIO_PROCESS, tid_of_other) == 18);
  assert(getpriority(PRIO_PROCESS, 0) == usual && getpriority(PRIO_PROCESS, getpid()) == usual);
  clockid_t clock;
  struct timespec used;
  assert(pthread_getcpuclockid(t, &clock) == 0 && clock_gettime(clock, &used) == 0);
  assert(pthread_getcpuclockid(pthread_self(), &clock) == 0 && clock_gettime(clock, &used) == 0);
}

// A tid ends with its thread, and the next thread does not get it.
static void tid_after_the_end(void) {
  pthread_t t;
  pid_t first = 0, second = 0;
  pthread_create(&t, NULL, ends, &first);
  pthread_join(t, NULL);
  pthread_create(&t, NULL, ends, &second);
  pthread_join(t, NULL);
  assert(first > 0 && second > 0 && first != second);
  assert(sched_getscheduler(first) == -1 && errno == ESRCH);
  assert(getpriority(PRIO_PROCESS, first) == -1 && errno == ESRCH);
}

// In a new process, asks for what takes privileges: on the main thread, or on another one.
static void without_privileges(int on_thread) {
  pthread_t t;
  pid_t child = fork();
  if (child == 0) {
    void* failed = NULL;
    if (getuid() == 0) {
      pthread_create(&t, NULL, on_thread ? in_thread : inherits, &allowed);
      pthread_join(t, &failed);
      if (!on_thread) failed = (void*)(long)unprivileged();
    }
    _exit(failed != NULL);
  }
  int status;
  assert(waitpid(child, &status, 0) == child);
  printf("unprivileged: %#x\n", status);
}

int main() {
  assert(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &one);

  int usual = getpriority(PRIO_PROCESS, 0);
  pthread_barrier_init(&met, NULL, 2);
  pthread_t t;
  pthread_create(&t, NULL, other, NULL);
  pthread_barrier_wait(&met);
  affinity_of(t);
  policy_of(t);
  nice_value_and_clock_of(t, usual);
  changed = 1;
  pthread_barrier_wait(&met);
  pthread_barrier_wait(&met);
  pthread_join(t, NULL);

  assert(pthread_getconcurrency() == 0 && pthread_setconcurrency(-1) == EINVAL);
  assert(pthread_setconcurrency(4) == 0 && pthread_getconcurrency() == 4 && pthread_setconcurrency(0) == 0);
  assert(gettid() == getpid() && syscall(SYS_gettid) == getpid());
  tid_after_the_end();
  for (int on_thread = 0; on_thread < 2; on_thread++) without_privileges(on_thread);
  return 0;
}
