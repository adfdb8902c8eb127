// SPDX-License-Identifier: MIT
// System calls by number that concern one thread: what they return and what they refuse.
#include "errors.h"

#include <signal.h>
#include <sys/wait.h>

#define BY_NUMBER(state, name, ...) show("SYS_" #name, state, (errno = 0, syscall(SYS_##name, __VA_ARGS__)) == -1 ? errno : 0)

static sem_t go, ready;
static int other_tid;
static volatile int got, got_tid;
static void on_signal(int sig) {
  got_tid = gettid();
  got++;
}
static void* waits(void* p) {
  other_tid = (int)syscall(SYS_gettid);
  sem_post(&ready);
  while (sem_wait(&go) != 0) {
  }
  return p;
}

static void identity(void) {
  show_value("SYS_gettid", "as gettid", syscall(SYS_gettid) == gettid());
  show_value("SYS_getpid", "as getpid", syscall(SYS_getpid) == getpid());
  show_value("gettid", "of all alike", (gettid() == other_tid) + (other_tid == getpid()) + (other_tid <= 0));
  // NPTL's join waits for the word that it named itself, so only the main thread may name another.
  static int word;
  if (gettid() == getpid()) show_value("SYS_set_tid_address", "main", syscall(SYS_set_tid_address, &word) == gettid());
  // libc has registered an area of its own, or knows that none is possible.
  show_value("SYS_rseq", "fails", syscall(SYS_rseq, &word, 32, 0, 0) == -1);
  void* head;
  size_t size = 0;
  BY_NUMBER("self", get_robust_list, 0, &head, &size);
  printf("size %zu\n", size);
  BY_NUMBER("no such tid", get_robust_list, INT_MAX, &head, &size);
  BY_NUMBER("size 23", set_robust_list, &word, 23L);
  BY_NUMBER("size 0", set_robust_list, NULL, 0L);
}

static void signals(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &a, NULL);
  got = 0;
  BY_NUMBER("self", tgkill, getpid(), gettid(), SIGUSR1);
  printf("handled %d, here %d\n", got, got_tid == gettid());
  BY_NUMBER("self", tkill, gettid(), SIGUSR1);
  printf("handled %d, here %d\n", got, got_tid == gettid());
  got_tid = 0;
  BY_NUMBER("another", tgkill, getpid(), other_tid, SIGUSR1);
  while (got < 3) sched_yield();
  printf("there %d\n", got_tid == other_tid);
  BY_NUMBER("another", tkill, other_tid, SIGUSR1);
  while (got < 4) sched_yield();
  printf("there %d\n", got_tid == other_tid);
  static const int bad[] = {-1, 0, 65, INT_MAX};
  for (int i = 0; i < 4; i++) {
    BY_NUMBER(format("signal %d", bad[i]), tgkill, getpid(), gettid(), bad[i]);
    BY_NUMBER(format("signal %d", bad[i]), tkill, gettid(), bad[i]);
    BY_NUMBER(format("another, signal %d", bad[i]), tgkill, getpid(), other_tid, bad[i]);
  }
  static const int tids[] = {-1, 0, INT_MAX};
  for (int i = 0; i < 3; i++) {
    BY_NUMBER(format("tid %d", tids[i]), tgkill, getpid(), tids[i], 0);
    BY_NUMBER(format("tid %d", tids[i]), tkill, tids[i], 0);
    BY_NUMBER(format("group %d", tids[i]), tgkill, tids[i], gettid(), 0);
  }
}

// This is a function of its own, since it names cases by clocks.
static void clocks_and_time(void) {
  struct timespec t;
  for (size_t i = 0; i < CLOCKS; i++) {
    const char* name = format("clock %d", clocks[i]);
    BY_NUMBER(name, clock_gettime, clocks[i], &t);
    BY_NUMBER(name, clock_getres, clocks[i], &t);
    BY_NUMBER(format("%s, no result", name), clock_getres, clocks[i], NULL);
    BY_NUMBER(format("%s, bad address", name), clock_gettime, clocks[i], (void*)8);
    if (clocks[i] == CLOCK_PROCESS_CPUTIME_ID) continue;
    BY_NUMBER(format("%s, passed", name), clock_nanosleep, clocks[i], TIMER_ABSTIME, &past, NULL);
    BY_NUMBER(format("%s, tv_nsec 1e9", name), clock_nanosleep, clocks[i], 0, &bad_high, NULL);
    BY_NUMBER(format("%s, bad address", name), clock_nanosleep, clocks[i], 0, (void*)8, NULL);
  }
  clockid_t c;
  pthread_getcpuclockid(pthread_self(), &c);
  BY_NUMBER("own clock", clock_gettime, c, &t);
  BY_NUMBER("own clock", clock_getres, c, &t);
  BY_NUMBER("own clock", clock_settime, c, &t);
  BY_NUMBER("bad address", clock_gettime, c, (void*)8);
  struct rusage u;
  static const int whos[] = {RUSAGE_SELF, RUSAGE_CHILDREN, RUSAGE_THREAD, 2, -2};
  for (int i = 0; i < 5; i++) {
    BY_NUMBER(format("%d", whos[i]), getrusage, whos[i], &u);
    BY_NUMBER(format("%d, bad address", whos[i]), getrusage, whos[i], (void*)8);
  }
  BY_NUMBER("a little", nanosleep, &(struct timespec){0, 1000}, NULL);
  BY_NUMBER("before 1970", nanosleep, &negative, NULL);
}

static void timers(void) {
  static const struct {
    const char* name;
    int notify, signal, tid;
  } some[] = {{"signal", SIGEV_SIGNAL, SIGUSR1, 0},
              {"none", SIGEV_NONE, 0, 0},
              {"thread", SIGEV_THREAD_ID, SIGUSR1, -2},
              {"another", SIGEV_THREAD_ID, SIGUSR1, -3},
              {"tid 0", SIGEV_THREAD_ID, SIGUSR1, 0},
              {"tid -1", SIGEV_THREAD_ID, SIGUSR1, -1},
              {"no such tid", SIGEV_THREAD_ID, SIGUSR1, INT_MAX},
              {"signal 65", SIGEV_SIGNAL, 65, 0},
              {"notify 99", 99, SIGUSR1, 0}};
  static const int on[] = {CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID};
  for (int k = 0; k < 2; k++) {
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
      struct sigevent e;
      memset(&e, 0, sizeof e);
      e.sigev_notify = some[i].notify;
      e.sigev_signo = some[i].signal;
      e._sigev_un._tid = some[i].tid == -2 ? gettid() : some[i].tid == -3 ? other_tid : some[i].tid;
      int timer = -1;
      const char* state = format("clock %d, %s", on[k], some[i].name);
      if (BY_NUMBER(state, timer_create, on[k], &e, &timer) != 0) continue;
      got = 0;
      if (some[i].notify == SIGEV_THREAD_ID) {
        struct itimerspec often = {{0, 2000000}, {0, 2000000}};
        BY_NUMBER(state, timer_settime, timer, 0, &often, NULL);
        while (got < 3) {
        }
        printf("there %d\n", got_tid == e._sigev_un._tid);
      }
      BY_NUMBER(state, timer_delete, timer);
      BY_NUMBER(format("%s, deleted", state), timer_delete, timer);
    }
    BY_NUMBER(format("clock %d, bad event", on[k]), timer_create, on[k], (void*)8, &got);
    BY_NUMBER(format("clock %d, bad result", on[k]), timer_create, on[k], NULL, (void*)8);
  }
}

static void scheduling(void) {
  struct sched_param p = {0};
  cpu_set_t set;
  struct timespec t;
  const struct {
    const char* name;
    int tid;
  } whom[] = {{"self", 0}, {"own tid", gettid()}, {"another", other_tid}, {"nobody", INT_MAX}, {"-1", -1}};
  for (int i = 0; i < 5; i++) {
    int tid = whom[i].tid;
    const char* s = whom[i].name;
    BY_NUMBER(s, sched_getscheduler, tid);
    BY_NUMBER(s, sched_getparam, tid, &p);
    BY_NUMBER(format("%s, NULL", s), sched_getparam, tid, NULL);
    BY_NUMBER(s, sched_setparam, tid, &p);
    BY_NUMBER(format("%s, NULL", s), sched_setparam, tid, NULL);
    BY_NUMBER(s, sched_setscheduler, tid, SCHED_OTHER, &p);
    BY_NUMBER(format("%s, policy 99", s), sched_setscheduler, tid, 99, &p);
    BY_NUMBER(format("%s, NULL", s), sched_setscheduler, tid, SCHED_OTHER, NULL);
    BY_NUMBER(s, sched_rr_get_interval, tid, &t);
    BY_NUMBER(s, sched_getaffinity, tid, sizeof set, &set);
    BY_NUMBER(format("%s, 1 byte", s), sched_getaffinity, tid, 1L, &set);
    BY_NUMBER(format("%s, 8 bytes", s), sched_getaffinity, tid, 8L, &set);
    BY_NUMBER(s, sched_setaffinity, tid, sizeof set, &set);
    CPU_ZERO(&set);
    BY_NUMBER(format("%s, none", s), sched_setaffinity, tid, sizeof set, &set);
    BY_NUMBER(format("%s, NULL", s), sched_setaffinity, tid, sizeof set, NULL);
    show_value("SYS_getpriority", s,
               (errno = 0, syscall(SYS_getpriority, PRIO_PROCESS, tid)) == -1 ? -errno : syscall(SYS_getpriority, PRIO_PROCESS, tid));
    BY_NUMBER(format("%s, 0", s), setpriority, PRIO_PROCESS, tid, 0);
    BY_NUMBER(format("%s, which 99", s), setpriority, 99, tid, 0);
  }
  BY_NUMBER("OTHER", sched_get_priority_max, SCHED_OTHER);
  BY_NUMBER("99", sched_get_priority_max, 99);
  BY_NUMBER("", sched_yield, 0);
}

// A thread that ends by itself: no handler runs, and the word that it named is cleared.
static int word, destroyed, cleaned;
static pthread_key_t key;
static void destroy(void* p) { destroyed++; }
static void clean(void* p) { cleaned++; }
static void* exits(void* p) {
  pthread_setspecific(key, &key);
  pthread_cleanup_push(clean, NULL);
  if (p) syscall(SYS_set_tid_address, &word);
  syscall(SYS_exit, 3);
  pthread_cleanup_pop(0);
  return p;
}
static void ending(void) {
  pthread_key_create(&key, destroy);
  pthread_t t;
  destroyed = cleaned = 0;
  assert(pthread_create(&t, NULL, exits, NULL) == 0);
  CASE("SYS_exit", pthread_join, t, NULL);
  word = 1;
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  assert(pthread_create(&t, &a, exits, &word) == 0);
  while (__atomic_load_n(&word, __ATOMIC_ACQUIRE)) syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 1, NULL, NULL, 0);
  printf("word %d, destroyed %d, cleaned %d\n", word, destroyed, cleaned);
  pthread_key_delete(key);
}

static void cases(void) {
  sem_init(&go, 0, 0);
  sem_init(&ready, 0, 0);
  pthread_t t;
  assert(pthread_create(&t, NULL, waits, NULL) == 0);
  while (sem_wait(&ready) != 0) {
  }
  identity();
  signals();
  clocks_and_time();
  timers();
  scheduling();
  ending();
  sem_post(&go);
  pthread_join(t, NULL);
}
