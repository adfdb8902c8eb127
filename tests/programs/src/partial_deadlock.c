// SPDX-License-Identifier: MIT
// Some threads wait for each other, while main goes on for some seconds. Argument: the case. Prints lines that the report must have, none if
// there must be no report. Without an argument, prints the cases, except the one that has to run alone.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER, c = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t all_hold;
static pthread_t threads[3];
static int go, waiting;

static pthread_t make(const char* name, void* (*f)(void*), void* p) {
  pthread_t t;
  pthread_create(&t, 0, f, p);
  pthread_setname_np(t, name);
  return t;
}

struct two {
  pthread_mutex_t *first, *then;
};
static void* takes_two(void* p) {
  struct two* t = p;
  pthread_mutex_lock(t->first);
  pthread_barrier_wait(&all_hold);
  pthread_mutex_lock(t->then);
  return 0;
}
static void ring(int n) {
  static struct two of[3];
  pthread_mutex_t* m[] = {&a, &b, &c};
  static const char* names[] = {"one", "two", "three"};
  pthread_barrier_init(&all_hold, 0, n);
  for (int i = 0; i < n; i++) {
    of[i] = (struct two){m[i], m[(i + 1) % n]};
    make(names[i], takes_two, &of[i]);
  }
  printf("'one'\nwaits for mutex %p held by fiber\n", (void*)m[1]);
}
static void mutexes(void) { ring(2); }
static void three(void) { ring(3); }

static void* locks_twice(void* p) {
  pthread_mutex_lock(p);
  pthread_mutex_lock(p);
  return 0;
}
static void itself(void) {
  make("forgetful", locks_twice, &a);
  printf("'forgetful'\nwaits for mutex %p held by itself\n", (void*)&a);
}

static void* writes(void* p) {
  pthread_rwlock_wrlock(&l);
  pthread_barrier_wait(&all_hold);
  pthread_mutex_lock(&a);
  return p;
}
static void* reads(void* p) {
  pthread_mutex_lock(&a);
  pthread_barrier_wait(&all_hold);
  pthread_rwlock_rdlock(&l);
  return p;
}
static void rwlock(void) {
  pthread_barrier_init(&all_hold, 0, 2);
  make("writer", writes, 0);
  make("reader", reads, 0);
  printf("'reader'\n'writer'\nwaits for rwlock (read) %p held by fiber\nwaits for mutex %p held by fiber\n", (void*)&l, (void*)&a);
}

static void* joins_other(void* p) {
  pthread_mutex_lock(&a);
  pthread_barrier_wait(&all_hold);
  pthread_join(threads[1], 0);
  return p;
}
static void* needs_lock(void* p) {
  pthread_barrier_wait(&all_hold);
  pthread_mutex_lock(&a);
  return p;
}
static void join(void) {
  pthread_barrier_init(&all_hold, 0, 2);
  threads[1] = make("needs", needs_lock, 0);
  make("joins", joins_other, 0);
  printf("'joins'\n'needs'\nwaits for the end of fiber\nwaits for mutex %p held by fiber\n", (void*)&a);
}

static void* waits_for_cond(void* p) {
  pthread_mutex_lock(&b);
  pthread_mutex_lock(&a);
  waiting = 1;
  while (!go) pthread_cond_wait(&cond, &a);
  return p;
}
static void* signals_and_keeps(void* p) {
  for (;;) {
    pthread_mutex_lock(&a);
    if (waiting) break;
    pthread_mutex_unlock(&a);
    usleep(1000);
  }
  go = 1;
  pthread_cond_broadcast(&cond);
  pthread_mutex_lock(&b);
  return p;
}
static void after_cond(void) {
  make("waiter", waits_for_cond, 0);
  make("signaller", signals_and_keeps, 0);
  printf("'signaller'\n'waiter'\nwaits for mutex %p held by fiber\nwaits for mutex %p held by fiber\n", (void*)&b, (void*)&a);
}

// ---- no deadlocks ----

static void* with_deadline(void* p) {
  struct two* t = p;
  struct timespec at;
  pthread_mutex_lock(t->first);
  pthread_barrier_wait(&all_hold);
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec += 4;
  if (pthread_mutex_timedlock(t->then, &at) == 0) pthread_mutex_unlock(t->then);
  pthread_mutex_unlock(t->first);
  return 0;
}
static void timed(void) {
  static struct two of[2] = {{&a, &b}, {&b, &a}};
  pthread_barrier_init(&all_hold, 0, 2);
  make("one", with_deadline, &of[0]);
  make("two", with_deadline, &of[1]);
}

static void* holds_and_sleeps(void* p) {
  pthread_mutex_lock(&a);
  sleep(4);
  pthread_mutex_unlock(&a);
  return p;
}
static void* waits_for_holder(void* p) {
  pthread_mutex_lock(&b);
  usleep(100000);
  pthread_mutex_lock(&a);
  pthread_mutex_unlock(&a);
  pthread_mutex_unlock(&b);
  return p;
}
static void slow_owner(void) {
  make("sleeper", holds_and_sleeps, 0);
  make("patient", waits_for_holder, 0);
}

// Many threads take the same two locks in one order, again and again, so that each always waits, and the owner changes.
static void* in_order(void* p) {
  for (time_t end = time(0) + 5; time(0) < end;) {
    pthread_mutex_lock(&a);
    pthread_mutex_lock(&b);
    pthread_rwlock_wrlock(&l);
    sched_yield();
    pthread_rwlock_unlock(&l);
    pthread_mutex_unlock(&b);
    pthread_mutex_unlock(&a);
  }
  return p;
}
static void busy(void) {
  for (int i = 0; i < 50; i++) make("busy", in_order, 0);
}

// The mutex goes with its memory as soon as the one that waits for it has had it.
static void* locks_once(void* p) {
  pthread_mutex_lock(p);
  pthread_mutex_unlock(p);
  return 0;
}
static void* short_lived(void* p) {
  for (time_t end = time(0) + 5; time(0) < end;) {
    pthread_mutex_t* m = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t t;
    pthread_mutex_init(m, 0);
    pthread_mutex_lock(m);
    pthread_create(&t, 0, locks_once, m);
    sched_yield();
    pthread_mutex_unlock(m);
    pthread_join(t, 0);
    munmap(m, 4096);
  }
  return p;
}
static void unmapped(void) {
  for (int i = 0; i < 10; i++) make("short", short_lived, 0);
}

// They compute for so long, without a switch, that the watch might take the process for idle. Main rests meanwhile, and so nothing else runs.
static void* computes(void* p) {
  struct two* t = p;
  pthread_mutex_lock(t->first);
  pthread_barrier_wait(&all_hold);
  struct timespec began, now;
  clock_gettime(CLOCK_MONOTONIC, &began);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while (now.tv_sec < began.tv_sec + 8);
  pthread_mutex_lock(t->then);
  return 0;
}
static void computed(void) {
  static struct two of[2] = {{&a, &b}, {&b, &a}};
  pthread_barrier_init(&all_hold, 0, 2);
  make("one", computes, &of[0]);
  make("two", computes, &of[1]);
  printf("'one'\nwaits for mutex %p held by fiber\n", (void*)&b);
  sleep(12);
  _exit(0);
}

static const struct {
  const char* name;
  void (*begin)(void);
} cases[] = {{"mutexes", mutexes}, {"three", three},           {"itself", itself},    {"rwlock", rwlock},
             {"join", join},       {"after_cond", after_cond}, {"timed", timed},      {"slow_owner", slow_owner},
             {"busy", busy},       {"unmapped", unmapped},     {"computed", computed}};

int main(int argc, char** argv) {
  setvbuf(stdout, 0, _IOLBF, 0);
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc < 2 && cases[i].begin != computed) puts(cases[i].name);
    else if (argc > 1 && !strcmp(argv[1], cases[i].name)) cases[i].begin();
  }
  for (int i = 0; argc > 1 && i < 700; i++) usleep(10000);
  _exit(0);
}
