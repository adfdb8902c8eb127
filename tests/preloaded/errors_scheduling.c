// SPDX-License-Identifier: MIT
// Policies, priorities and affinity, by handle and by tid. Each pass is a process of its own, since it leaves things behind.
#include "errors.h"

#include <sys/wait.h>

static sem_t go;
static void* waits(void* p) {
  *(int*)p = gettid();
  sem_post(&go);
  for (;;) pause();
  return p;
}
static const int values[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 99, SCHED_RESET_ON_FORK, INT_MIN};
static const int priorities[] = {-1, 0, 1, 99, 100};
#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)

// The kernel's struct sched_attr. Headers of 2.41 declare the functions, too.
struct attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t rest[4];
};
int set_attributes(pid_t, struct attributes*, unsigned) __asm__("sched_setattr") __attribute__((weak));
int get_attributes(pid_t, struct attributes*, unsigned, unsigned) __asm__("sched_getattr") __attribute__((weak));

static void by_attributes(int tid, const char* whose) {
  struct attributes a = {48};
#define SET(state, ...) show("sched_setattr", state, (errno = 0, set_attributes(__VA_ARGS__)) == -1 ? errno : 0)
#define GET(state, ...) show("sched_getattr", state, (errno = 0, get_attributes(__VA_ARGS__)) == -1 ? errno : 0)
  GET(format("%s, NULL", whose), tid, NULL, 48, 0);
  GET(format("%s, 47 bytes", whose), tid, &a, 47, 0);
  GET(format("%s, flags", whose), tid, &a, 48, 1);
  GET(format("%s, nowhere", whose), tid, (void*)8, 48, 0);
  SET(format("%s, NULL", whose), tid, NULL, 0);
  SET(format("%s, flags", whose), tid, &a, 1);
  SET(format("%s, nowhere", whose), tid, (void*)8, 0);
  EACH(i, values) EACH(k, priorities) {
    a = (struct attributes){48, values[i], 0, 0, priorities[k]};
    SET(format("%s, policy %d, priority %d", whose, values[i], priorities[k]), tid, &a, 0);
    a = (struct attributes){0};
    GET(whose, tid, &a, 48, 0);
    printf("size %u policy %u flags %d nice %d priority %u\n", a.size, a.policy, (int)a.flags, a.nice, a.priority);
  }
  static const int nices[] = {1, 5, 99, 0, -1, -99};
  EACH(i, nices) {
    a = (struct attributes){48, SCHED_OTHER, 0, nices[i]};
    SET(format("%s, nice %d", whose, nices[i]), tid, &a, 0);
    printf("nice %d\n", getpriority(PRIO_PROCESS, tid));
  }
  a = (struct attributes){48, SCHED_BATCH, 1};
  SET(format("%s, reset on fork", whose), tid, &a, 0);
  printf("policy %#x\n", sched_getscheduler(tid));
  a = (struct attributes){48, SCHED_OTHER, 8};
  SET(format("%s, policy kept", whose), tid, &a, 0);
  printf("policy %#x\n", sched_getscheduler(tid));
  a = (struct attributes){48, SCHED_OTHER, 16, 7};
  SET(format("%s, parameters kept", whose), tid, &a, 0);
  printf("policy %#x nice %d\n", sched_getscheduler(tid), getpriority(PRIO_PROCESS, tid));
  a = (struct attributes){47};
  SET(format("%s, of 47 bytes", whose), tid, &a, 0);
  printf("size %u\n", a.size);
  a = (struct attributes){0};
  SET(format("%s, of no size", whose), tid, &a, 0);
  a = (struct attributes){48, SCHED_OTHER, 1 << 30};
  SET(format("%s, unknown flags", whose), tid, &a, 0);
  static struct {
    struct attributes a;
    char unknown[200];
  } larger = {{sizeof larger, SCHED_OTHER}};
  SET(format("%s, of a later form", whose), tid, &larger.a, 0);
  larger.unknown[190] = 1;
  SET(format("%s, with unknown parts", whose), tid, &larger.a, 0);
  GET(format("%s, to a later form", whose), tid, &larger.a, sizeof larger, 0);
}

static void by_handle(pthread_t t, const char* whose) {
  int policy = 77;
  struct sched_param p = {77};
  CASE(whose, pthread_getschedparam, t, &policy, &p);
  printf("policy %d priority %d\n", policy, p.sched_priority);
  EACH(i, values) EACH(k, priorities) {
    p.sched_priority = priorities[k];
    const char* s = format("%s, policy %d, priority %d", whose, values[i], priorities[k]);
    CASE(s, pthread_setschedparam, t, values[i], &p);
    pthread_getschedparam(t, &policy, &p);
    printf("policy %d priority %d\n", policy, p.sched_priority);
    CASE(s, pthread_setschedprio, t, priorities[k]);
  }
  p.sched_priority = 0;
  CASE(whose, pthread_setschedparam, t, SCHED_OTHER, &p);
  cpu_set_t set, none;
  CASE(whose, pthread_getaffinity_np, t, sizeof set, &set);
  CASE(format("%s, 1 byte", whose), pthread_getaffinity_np, t, 1, &set);
  CASE(format("%s, 0 bytes", whose), pthread_getaffinity_np, t, 0, &set);
  CPU_ZERO(&none);
  CASE(format("%s, no CPU", whose), pthread_setaffinity_np, t, sizeof none, &none);
  CPU_SET(1000, &none);
  CASE(format("%s, CPU 1000", whose), pthread_setaffinity_np, t, sizeof none, &none);
  CASE(format("%s, 0 bytes", whose), pthread_setaffinity_np, t, 0, &none);
  pthread_getaffinity_np(t, sizeof set, &set);
  CASE(format("%s, as it is", whose), pthread_setaffinity_np, t, sizeof set, &set);
}

static void by_tid(int tid, const char* whose) {
  struct sched_param p = {77};
  cpu_set_t set, none;
  struct timespec t;
  show("sched_getscheduler", whose, (errno = 0, sched_getscheduler(tid)) == -1 ? errno : 0);
  FAILS(whose, sched_getparam, tid, &p);
  FAILS(format("%s, NULL", whose), sched_getparam, tid, NULL);
  FAILS(format("%s, NULL", whose), sched_setparam, tid, NULL);
  FAILS(format("%s, NULL", whose), sched_setscheduler, tid, SCHED_OTHER, NULL);
  EACH(i, values) EACH(k, priorities) {
    p.sched_priority = priorities[k];
    const char* s = format("%s, policy %d, priority %d", whose, values[i], priorities[k]);
    FAILS(s, sched_setscheduler, tid, values[i], &p);
    FAILS(s, sched_setparam, tid, &p);
    printf("policy %d\n", sched_getscheduler(tid));
  }
  p.sched_priority = 0;
  FAILS(whose, sched_setscheduler, tid, SCHED_OTHER, &p);
  FAILS(whose, sched_rr_get_interval, tid, &t);
  FAILS(whose, sched_getaffinity, tid, sizeof set, &set);
  FAILS(format("%s, 1 byte", whose), sched_getaffinity, tid, 1, &set);
  CPU_ZERO(&none);
  FAILS(format("%s, no CPU", whose), sched_setaffinity, tid, sizeof none, &none);
  FAILS(format("%s, 0 bytes", whose), sched_setaffinity, tid, 0, &none);
  FAILS(format("%s, NULL", whose), sched_setaffinity, tid, sizeof none, NULL);
  show("getpriority", whose, (errno = 0, getpriority(PRIO_PROCESS, tid)) == -1 && errno ? errno : 0);
  FAILS(whose, setpriority, PRIO_PROCESS, tid, 1);
  printf("nice %d\n", getpriority(PRIO_PROCESS, tid));
  FAILS(format("%s, too much", whose), setpriority, PRIO_PROCESS, tid, 99);
  printf("nice %d\n", getpriority(PRIO_PROCESS, tid));
}

static void limits(void) {
  EACH(i, values) {
    show("sched_get_priority_min", format("%d", values[i]),
         (errno = 0, sched_get_priority_min(values[i])) == -1 ? errno : -sched_get_priority_min(values[i]));
    show("sched_get_priority_max", format("%d", values[i]),
         (errno = 0, sched_get_priority_max(values[i])) == -1 ? errno : -sched_get_priority_max(values[i]));
  }
  FAILS("", sched_yield);
  FAILS("no such which", getpriority, 99, 0);
  FAILS("no such which", setpriority, 99, 0, 0);
  show_value("sched_getcpu", "fails", sched_getcpu() < 0);
}

static void* nothing(void* p) { return p; }
static void creation(void) {
  EACH(i, values) EACH(k, priorities) {
    pthread_attr_t a;
    pthread_t t;
    pthread_attr_init(&a);
    struct sched_param p = {priorities[k]};
    if (pthread_attr_setschedpolicy(&a, values[i]) != 0 || pthread_attr_setschedparam(&a, &p) != 0) continue;
    pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
    if (CASE(format("policy %d, priority %d", values[i], priorities[k]), pthread_create, &t, &a, nothing, NULL) == 0) pthread_join(t, NULL);
    pthread_attr_destroy(&a);
  }
}

static void* all(void* p) {
  limits();
  int tid = 0;
  pthread_t t;
  sem_init(&go, 0, 0);
  assert(pthread_create(&t, NULL, waits, &tid) == 0);
  while (sem_wait(&go) != 0) {
  }
  creation();
  by_handle(t, "another");
  by_handle(pthread_self(), "self");
  by_tid(tid, "another");
  show_value("pthread_gettid_np", "another", !since(42) || tid_of(t) == tid);
  show_value("pthread_gettid_np", "self", !since(42) || tid_of(pthread_self()) == gettid());
  if (since(41)) {
    by_attributes(tid, "another");
    by_attributes(0, "self");
    by_attributes(gettid(), "own tid");
    by_attributes(-1, "-1");
    by_attributes(INT_MAX, "nobody");
  }
  by_tid(0, "self");
  by_tid(gettid(), "own tid");
  by_tid(-1, "-1");
  by_tid(INT_MAX, "nobody");
  fflush(stdout);
  _exit(0);
}

// Half of the passes run without privileges, as a user's program does.
static void cases(void) {
  for (int user = 0; user < 2; user++) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      printf("-- %s\n", user ? "a user" : "as started");
      struct rlimit none = {0, 0};
      if (user) setrlimit(RLIMIT_RTPRIO, &none), setrlimit(RLIMIT_NICE, &none);
      if (user && geteuid() == 0) assert(setuid(65534) == 0);
      all(NULL);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    printf("status %d\n", status);
  }
}
