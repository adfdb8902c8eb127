// SPDX-License-Identifier: MIT
// Priority inheritance and protection: which priority the kernel gives to the owner, if the user may have real-time threads. Also what the
// calls answer, and chains, timeouts, condition variables and load.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void make_mutex(pthread_mutex_t* m, int protocol, int type, int shared, int ceiling) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setprotocol(&a, protocol);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setpshared(&a, shared);
  if (protocol == PTHREAD_PRIO_PROTECT) assert(pthread_mutexattr_setprioceiling(&a, ceiling) == 0);
  assert(pthread_mutex_init(m, &a) == 0);
}
static void print(const char* what, int e) { printf(" %s=%s", what, e ? strerrorname_np(e) : "0"); }

// Returns the priority that the kernel gives to a kernel thread now. 0: the thread is not real-time.
static int priority_of(const char* task) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%s/stat", task);
  FILE* f = fopen(path, "r");
  assert(f && fgets(text, sizeof text, f));
  fclose(f);
  int n = 0;
  char* p = strrchr(text, ')') + 2;  // this is field 3, and the priority is field 18
  for (char* word = strtok(p, " "); word; word = strtok(NULL, " "))
    if (++n == 16) return atoi(word) < 0 ? -1 - atoi(word) : 0;
  return -1;
}
static void this_task(char* name) {
  ssize_t n = readlink("/proc/thread-self", name, 63);
  assert(n > 0);
  name[n] = 0;
}
static int my_priority(void) {
  char name[64];
  this_task(name);
  return priority_of(name);
}

// ---- a chain: high waits for a, whose owner waits for b, whose owner does nothing ----

static pthread_mutex_t a, b;
static char low_task[64], middle_task[64];
static atomic_int low_has, middle_has, high_begins, release_low;
static atomic_int high_error;
static void* low(void* p) {
  this_task(low_task);  // read before the lock, since the kernel thread may be another one afterwards
  assert(pthread_mutex_lock(&b) == 0);
  this_task(low_task);
  low_has = 1;
  while (!release_low) usleep(200);
  assert(pthread_mutex_unlock(&b) == 0);
  printf(" low after %d", my_priority());
  return p;
}
static void* middle(void* p) {
  assert(pthread_mutex_lock(&a) == 0);
  this_task(middle_task);
  middle_has = 1;
  assert(pthread_mutex_lock(&b) == 0);
  assert(pthread_mutex_unlock(&b) == 0);
  assert(pthread_mutex_unlock(&a) == 0);
  return p;
}
static void* high(void* p) {
  struct sched_param param = {7};
  high_error = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param);
  high_begins = 1;
  assert(pthread_mutex_lock(&a) == 0);
  assert(pthread_mutex_unlock(&a) == 0);
  return p;
}
static void chain(int shared) {
  low_has = middle_has = high_begins = release_low = 0;
  make_mutex(&a, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_NORMAL, shared, 0);
  make_mutex(&b, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_NORMAL, shared, 0);
  pthread_t l, m, h;
  pthread_create(&l, NULL, low, NULL);
  while (!low_has) usleep(200);
  pthread_create(&m, NULL, middle, NULL);
  while (!middle_has) usleep(200);
  pthread_create(&h, NULL, high, NULL);
  while (!high_begins) usleep(200);
  int wanted = high_error ? 0 : 7;
  for (int i = 0; i < 20000 && (priority_of(low_task) != wanted || priority_of(middle_task) != wanted); i++) usleep(500);
  printf("chain, shared %d: %s low %d middle %d", shared, high_error ? strerrorname_np(high_error) : "0", priority_of(low_task),
         priority_of(middle_task));
  release_low = 1;
  pthread_join(l, NULL);
  pthread_join(m, NULL);
  pthread_join(h, NULL);
  puts("");
}

// ---- ceilings ----

static void* with_ceilings(void* p) {
  int shared = p != NULL, old = -1;
  pthread_mutex_t m, n;
  for (int type = 0; type < 4; type++) {
    make_mutex(&m, PTHREAD_PRIO_PROTECT, type, shared, 5);
    make_mutex(&n, PTHREAD_PRIO_PROTECT, type, shared, 9);
    printf("ceiling, type %d shared %d:", type, shared);
    print("get", pthread_mutex_getprioceiling(&m, &old));
    printf(" %d", old);
    print("lock", pthread_mutex_lock(&m));
    printf(" %d", my_priority());
    print("try", pthread_mutex_trylock(&m));
    if (type == PTHREAD_MUTEX_RECURSIVE) print("unlock", pthread_mutex_unlock(&m));
    print("lock", pthread_mutex_lock(&n));
    printf(" %d", my_priority());
    print("unlock", pthread_mutex_unlock(&n));
    printf(" %d", my_priority());
    print("unlock", pthread_mutex_unlock(&m));
    printf(" %d", my_priority());
    if (type == PTHREAD_MUTEX_RECURSIVE || type == PTHREAD_MUTEX_ERRORCHECK) print("unlock", pthread_mutex_unlock(&m));
    print("set", pthread_mutex_setprioceiling(&m, 3, &old));
    printf(" %d", old);
    print("bad", pthread_mutex_setprioceiling(&m, 100, &old));
    print("get", pthread_mutex_getprioceiling(&m, &old));
    printf(" %d", old);
    print("timed", pthread_mutex_timedlock(&m, &(struct timespec){0, 0}));
    printf(" %d", my_priority());
    print("unlock", pthread_mutex_unlock(&m));
    print("destroy", pthread_mutex_destroy(&m));
    puts("");
    pthread_mutex_destroy(&n);
  }
  return p;
}
static void* above_the_ceiling(void* p) {
  struct sched_param param = {8};
  pthread_mutex_t m;
  make_mutex(&m, PTHREAD_PRIO_PROTECT, 0, 0, 5);
  print("fifo", pthread_setschedparam(pthread_self(), SCHED_FIFO, &param));
  print("lock", pthread_mutex_lock(&m));
  print("try", pthread_mutex_trylock(&m));
  printf(" %d\n", my_priority());
  return p;
}

// ---- load: every thread gets its turn, by mutex and by condition variable ----

enum { kThreads = 12, kTurns = 600 };
static pthread_mutex_t m;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static long turn;
static void* take_turns(void* p) {
  long me = (long)p;
  for (;;) {
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec = (soon.tv_nsec + 200000) % 1000000000;
    int e = me % 3 ? pthread_mutex_lock(&m) : pthread_mutex_timedlock(&m, &soon);
    if (e == ETIMEDOUT) continue;
    assert(e == 0);
    while (turn < kTurns && turn % kThreads != me) assert(pthread_cond_wait(&c, &m) == 0);
    int last = turn >= kTurns;
    if (!last) turn++;
    pthread_cond_broadcast(&c);
    assert(pthread_mutex_unlock(&m) == 0);
    if (last) return p;
  }
}
static void load(int shared) {
  make_mutex(&m, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_ERRORCHECK, shared, 0);
  turn = 0;
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, take_turns, (void*)i);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%ld turns\n", turn);
}

int main() {
  for (int shared = 0; shared < 2; shared++) {
    chain(shared);
    load(shared);
    pthread_t t;
    pthread_create(&t, NULL, with_ceilings, shared ? &t : NULL);
    pthread_join(t, NULL);
    with_ceilings(shared ? &t : NULL);
  }
  pthread_t t;
  pthread_create(&t, NULL, above_the_ceiling, NULL);
  pthread_join(t, NULL);
  // A later thread has nothing of that.
  pthread_create(&t, NULL, with_ceilings, NULL);
  pthread_join(t, NULL);
  return 0;
}
