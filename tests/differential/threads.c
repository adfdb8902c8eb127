// SPDX-License-Identifier: MIT
// Making, joining and detaching threads, what each thread has of its own, and scheduling without privileges.
#include "differential.h"
#include <locale.h>
#include <sys/resource.h>

static _Thread_local int counter = 5;
static _Thread_local char large[3000] = "abc";

struct made {
  int size;
  sem_t go, done;
};

static void* use_stack(void* v) {
  struct made* m = v;
  volatile char block[16384];
  memset((char*)block, 7, sizeof block);
  pthread_attr_t a;
  int detached = -1;
  size_t stack = 0, guard = 1;
  SAY_ERROR("getattr", pthread_getattr_np(pthread_self(), &a));
  pthread_attr_getdetachstate(&a, &detached);
  pthread_attr_getstacksize(&a, &stack);
  pthread_attr_getguardsize(&a, &guard);
  pthread_attr_destroy(&a);
  char name[16] = "?";
  pthread_getname_np(pthread_self(), name, sizeof name);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  say(" detached %d stack %d guard %d name %s mask %d%d%d tls %d %s block %d", detached, stack >= (size_t)m->size, guard > 0, name,
      sigismember(&mask, SIGUSR1), sigismember(&mask, SIGTERM), sigismember(&mask, OWN_SIGNAL(0)), ++counter, large, block[100]);
  sem_post(&m->done);
  return (void*)5L;
}

static void create(struct operation* o) {
  struct made* m = calloc(1, sizeof *m);
  m->size = 1 << (16 + o->a[0]);
  sem_init(&m->done, 0, 0);
  pthread_attr_t a;
  pthread_attr_init(&a);
  SAY_ERROR("stacksize", pthread_attr_setstacksize(&a, m->size));
  SAY_ERROR("small", pthread_attr_setstacksize(&a, 1000));
  SAY_ERROR("guard", pthread_attr_setguardsize(&a, o->a[1] * 4096));
  SAY_ERROR("detach", pthread_attr_setdetachstate(&a, o->a[2]));
  SAY_ERROR("inherit", pthread_attr_setinheritsched(&a, o->a[3] % 2));
  if (o->a[3] / 2) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    sigaddset(&mask, SIGTERM);
    SAY_ERROR("sigmask", pthread_attr_setsigmask_np(&a, &mask));
  }
  pthread_t t = start_helper(use_stack, m, &a);
  if (o->a[2] != PTHREAD_CREATE_DETACHED) {
    say(" joined %ld", (long)join(t));
  } else {
    while (sem_wait(&m->done) != 0) {
    }
  }
  pthread_attr_destroy(&a);
}

static void* wait_to_go(void* v) {
  struct made* m = v;
  while (sem_wait(&m->go) != 0) {
  }
  return (void*)6L;
}
static void joins(struct operation* o) {
  struct made* m = calloc(1, sizeof *m);  // a detached thread uses it until it ends
  void* value = NULL;
  struct timespec t = moment(o->a[1] ? kSoon : 0, clock_of(o->a[2]));  // with a wrong tv_nsec NPTL's wait never ends
  sem_init(&m->go, 0, 0);
  pthread_t h = start_helper(wait_to_go, m, NULL);
  SAY_ERROR("self", pthread_join(pthread_self(), NULL));
  SAY_ERROR("try", pthread_tryjoin_np(h, &value));
  SAY_ERROR("clock", pthread_clockjoin_np(h, &value, clock_of(o->a[2]), &t));
  if (o->a[2] == 0) SAY_ERROR("timed", pthread_timedjoin_np(h, &value, &t));
  if (o->a[0] == 0) {
    SAY_ERROR("detach", pthread_detach(h));
    SAY_ERROR("again", pthread_detach(h));
    SAY_ERROR("join", pthread_join(h, NULL));
    sem_post(&m->go);
    return;
  }
  sem_post(&m->go);
  if (o->a[0] == 1) SAY_ERROR("clock", pthread_clockjoin_np(h, &value, CLOCK_MONOTONIC, &far_away));
  if (o->a[0] == 2)
    while (pthread_tryjoin_np(h, &value) == EBUSY) sched_yield();
  if (o->a[0] == 3) value = join(h);
  say(" %ld", (long)value);
  free(m);
}

static void* show_name(void* v) {
  char name[16] = "?";
  pthread_getname_np(pthread_self(), name, sizeof name);
  say(" %s", name);
  return v;
}
static void names(struct operation* o) {
  char before[16] = "?", name[32] = "?";
  pthread_getname_np(pthread_self(), before, sizeof before);
  snprintf(name, sizeof name, "n%d%s", o->a[0], o->a[1] == 0 ? "-is-too-long-a-name" : "");
  SAY_ERROR("set", pthread_setname_np(pthread_self(), name));
  SAY_ERROR("get", pthread_getname_np(pthread_self(), name, o->a[1] == 1 ? 3 : 16));
  if (o->a[1] > 1) say(" %s", name);
  elsewhere(show_name, NULL);
  pthread_setname_np(pthread_self(), before);
}

static void* schedule(void* v) {
  static const int policies[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, 99, -1};
  int policy = policies[((int*)v)[0]], got = -1;
  struct sched_param p = {.sched_priority = ((int*)v)[1]};
  SAY_ERROR("set", pthread_setschedparam(pthread_self(), policy, &p));
  SAY_ERROR("get", pthread_getschedparam(pthread_self(), &got, &p));
  say(" %d %d", got, p.sched_priority);
  SAY_ERROR("prio", pthread_setschedprio(pthread_self(), ((int*)v)[1] * 3));
  SAY_ERRNO("setscheduler", sched_setscheduler(0, policy, &p));
  say(" %d %d", sched_getscheduler(0), sched_getscheduler(getpid()) >= 0);
  return v;
}
static void* renice(void* v) {
  int n = ((int*)v)[2];
  errno = 0;
  SAY_ERRNO("setpriority", setpriority(PRIO_PROCESS, 0, n));
  say(" %d", getpriority(PRIO_PROCESS, 0));
  sched_yield();
  say(" %d", getpriority(PRIO_PROCESS, gettid()));
  return v;
}
static void* bind_to_cpu(void* v) {
  cpu_set_t set, one, got;
  SAY_ERROR("getaffinity", pthread_getaffinity_np(pthread_self(), sizeof set, &set));
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) {
      CPU_SET(i, &one);
      break;
    }
  SAY_ERROR("set", pthread_setaffinity_np(pthread_self(), sizeof one, &one));
  SAY_ERROR("get", pthread_getaffinity_np(pthread_self(), sizeof got, &got));
  say(" %d", CPU_EQUAL(&one, &got) && CPU_ISSET(sched_getcpu(), &one));
  CPU_ZERO(&got);
  SAY_ERROR("empty", pthread_setaffinity_np(pthread_self(), sizeof got, &got));
  return v;
}
static void scheduling(struct operation* o) {
  void* (*const ways[])(void*) = {schedule, schedule, renice, bind_to_cpu};
  elsewhere(ways[o->a[3]], o->a);
  int policy;
  struct sched_param p;
  SAY_ERROR("mine", pthread_getschedparam(pthread_self(), &policy, &p));
  say(" %d %d", policy, p.sched_priority);
}

static void* other_errno(void* v) {
  int before = errno;
  errno = 77;
  counter = 100;
  strcpy(large, "other");
  sched_yield();
  return (void*)(long)(before * 1000 + errno);
}
static void own_things(struct operation* o) {
  errno = o->a[0] + 1;
  counter++;
  long there = (long)join(start_helper(other_errno, NULL, NULL));
  for (int i = 0; i < o->a[1]; i++) sched_yield();
  nap(1);
  say(" errno %d there %ld counter %d %s", errno, there, counter > 5, large);
  locale_t c = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(c);
  nap(1);
  say(" locale %d", uselocale(NULL) == c);
  uselocale(before);
  freelocale(c);
  int old = -1;
  SAY_ERROR("state", pthread_setcancelstate(o->a[2], &old));
  say(" %d", old);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  SAY_ERROR("type", pthread_setcanceltype(o->a[2], &old));
  say(" %d", old);
  pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
}

static void* spin_a_while(void* v) {
  for (volatile int i = 0; i < 100000; i++) {
  }
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (void*)(long)(t.tv_sec == 0 && t.tv_nsec > 0 && v == NULL);
}
static void clocks(struct operation* o) {
  clockid_t mine = -1;
  struct timespec a, b, process;
  SAY_ERROR("cpuclock", pthread_getcpuclockid(pthread_self(), &mine));
  SAY_ERRNO("get", clock_gettime(o->a[0] ? mine : CLOCK_THREAD_CPUTIME_ID, &a));
  for (volatile int i = 0; i < 10000; i++) {
  }
  SAY_ERRNO("get", clock_gettime(o->a[1] ? mine : CLOCK_THREAD_CPUTIME_ID, &b));
  SAY_ERRNO("process", clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process));
  say(" later %d", b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec > a.tv_nsec));
  say(" helper %ld", (long)join(start_helper(spin_a_while, NULL, NULL)));
  SAY_ERRNO("settime", clock_settime(mine, &b) == 0 ? 0 : -1);
  clock_gettime(CLOCK_MONOTONIC, &a);
  SAY_ERRNO("nanosleep", nanosleep(&(struct timespec){0, 1000 * (o->a[2] + 1)}, NULL));
  SAY_ERROR("sleep", clock_nanosleep(clock_of(o->a[0]), TIMER_ABSTIME, &(struct timespec){1, 0}, NULL));
  SAY_ERROR("bad", clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){1, -1}, NULL));
  SAY_ERROR("mine", clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &(struct timespec){0, 1}, NULL));
  clock_gettime(CLOCK_MONOTONIC, &b);
  say(" later %d", b.tv_sec > a.tv_sec || (b.tv_sec == a.tv_sec && b.tv_nsec > a.tv_nsec));
}

static void* tid_main(void* v) {
  *(pid_t*)v = gettid();
  say(" %d", tgkill(getpid(), gettid(), 0));
  return v;
}
static void tids(struct operation* o) {
  pid_t tid = -1;
  elsewhere(tid_main, &tid);
  say(" main %d helper %d mine %d same %d", gettid() == getpid(), tid == gettid(), tid == getpid(), gettid() == syscall(SYS_gettid));
  SAY_ERRNO("tgkill", tgkill(getpid(), gettid(), 0));
  SAY_ERRNO("bad", tgkill(getpid(), gettid(), 65 + o->a[0]));
  SAY_ERROR("kill", pthread_kill(pthread_self(), 65 + o->a[0]));
  SAY_ERROR("concurrency", pthread_setconcurrency(-1));
  say(" equal %d", pthread_equal(pthread_self(), me->handle) != 0);
}

const struct kind thread_kinds[] = {{"create", create, 25, 1, {8, 3, 3, 4}, NULL},
                                    {"joins", joins, 20, 1, {4, 2, 2}, NULL},
                                    {"names", names, 10, 1, {1000, 4}, NULL},
                                    {"scheduling", scheduling, 10, 1, {5, 2, 3, 4}, NULL},
                                    {"own", own_things, 20, 1, {100, 4, 3}, NULL},
                                    {"clocks", clocks, 12, 1, {2, 2, 200}, NULL},
                                    {"tids", tids, 10, 1, {3}, NULL},
                                    {0}};
