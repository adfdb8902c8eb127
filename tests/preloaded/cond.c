// SPDX-License-Identifier: MIT
// Condition variables: both clocks, broadcast, a bounded queue under load, destruction after a broadcast, signals against
// cancellation, other kinds of mutexes, sharing.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct timespec in_ms(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
enum { kRoom = 4, kProducers = 16, kConsumers = 16, kEach = 2000 };
static long ring[kRoom], sum;
static int count, head, left = kProducers * kEach;

static void* produce(void* p) {
  for (long i = 1; i <= kEach; i++) {
    pthread_mutex_lock(&m);
    while (count == kRoom) pthread_cond_wait(&not_full, &m);
    ring[(head + count++) % kRoom] = i;
    pthread_cond_signal(&not_empty);
    pthread_mutex_unlock(&m);
  }
  return p;
}
static void* consume(void* p) {
  unsigned seed = (unsigned)(size_t)p;
  pthread_mutex_lock(&m);
  for (;;) {
    while (count == 0 && left > 0) {
      struct timespec t = in_ms(CLOCK_REALTIME, 1 + rand_r(&seed) % 3);
      int e = rand_r(&seed) % 4 ? pthread_cond_wait(&not_empty, &m) : pthread_cond_timedwait(&not_empty, &m, &t);
      assert(e == 0 || e == ETIMEDOUT);
    }
    if (left == 0) break;
    sum += ring[head];
    head = (head + 1) % kRoom;
    count--;
    if (--left == 0) pthread_cond_broadcast(&not_empty);
    pthread_cond_signal(&not_full);
  }
  pthread_mutex_unlock(&m);
  return NULL;
}

static void timeouts(void) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_cond_t mono;
  pthread_cond_init(&mono, &a);
  struct timespec r = in_ms(CLOCK_REALTIME, 10), t = in_ms(CLOCK_MONOTONIC, 10), bad = {0, -1}, past = {0, 0};
  pthread_mutex_lock(&m);
  assert(pthread_cond_timedwait(&mono, &m, &t) == ETIMEDOUT);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  assert(now.tv_sec > t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec >= t.tv_nsec));
  assert(pthread_cond_timedwait(&not_empty, &m, &r) == ETIMEDOUT);
  assert(pthread_cond_timedwait(&not_empty, &m, &bad) == EINVAL);
  assert(pthread_cond_timedwait(&not_empty, &m, &past) == ETIMEDOUT);
  assert(pthread_cond_clockwait(&not_empty, &m, CLOCK_MONOTONIC, &past) == ETIMEDOUT);
  assert(pthread_cond_clockwait(&not_empty, &m, CLOCK_THREAD_CPUTIME_ID, &past) == EINVAL);
  pthread_mutex_unlock(&m);
  pthread_cond_destroy(&mono);
}

// A thread that a broadcast has woken may free the object at once.
struct Gate {
  pthread_mutex_t m;
  pthread_cond_t c;
  int waiting, open, gone;
};
static void* pass(void* p) {
  struct Gate* g = p;
  pthread_mutex_lock(&g->m);
  g->waiting++;
  while (!g->open) pthread_cond_wait(&g->c, &g->m);
  int last = ++g->gone == 8;
  pthread_mutex_unlock(&g->m);
  if (last) pthread_cond_destroy(&g->c);
  return NULL;
}
static void gates(void) {
  for (int round = 0; round < 300; round++) {
    struct Gate* g = calloc(1, sizeof *g);  // zero-filled memory is a valid object
    pthread_t t[8];
    for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, pass, g);
    for (int all = 0; !all;) {
      pthread_mutex_lock(&g->m);
      if ((all = g->waiting == 8)) {
        g->open = 1;
        pthread_cond_broadcast(&g->c);
      }
      pthread_mutex_unlock(&g->m);
      sched_yield();
    }
    for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    free(g);
  }
}

// One of two waiters gets a signal of the condition and is cancelled at the same time. If it ends as cancelled, the signal must reach the
// other.
static int tokens, here;
static void unlock(void* p) { pthread_mutex_unlock(p); }
static void* take_token(void* p) {
  pthread_mutex_lock(&m);
  pthread_cleanup_push(unlock, &m);
  here++;
  while (!tokens) pthread_cond_wait(&not_empty, &m);
  tokens--;
  pthread_cleanup_pop(1);
  return p;
}
static void signal_and_cancel(void) {
  for (int round = 0; round < 1000; round++) {
    pthread_t a, b;
    here = tokens = 0;
    pthread_create(&a, NULL, take_token, NULL);
    pthread_create(&b, NULL, take_token, NULL);
    for (;;) {
      pthread_mutex_lock(&m);
      if (here == 2) break;
      pthread_mutex_unlock(&m);
      sched_yield();
    }
    tokens = 1;
    pthread_cond_signal(&not_empty);
    if (round % 2) pthread_cancel(a);
    pthread_mutex_unlock(&m);
    if (round % 2 == 0) pthread_cancel(a);
    void* r;
    pthread_join(a, &r);
    if (r != PTHREAD_CANCELED) {
      pthread_mutex_lock(&m);
      tokens = 1;
      pthread_mutex_unlock(&m);
      pthread_cond_signal(&not_empty);
    }
    pthread_join(b, &r);
    assert(r == NULL);
  }
}

// Threads take turns by a condition variable and a mutex of any kind.
struct Turns {
  pthread_mutex_t m;
  pthread_cond_t c;
  int turn, all;
};
static struct Turns* turns;
static void* take_turns(void* p) {
  for (int i = 0; i < 300; i++) {
    assert(pthread_mutex_lock(&turns->m) == 0);
    while (turns->turn % turns->all != (int)(long)p) assert(pthread_cond_wait(&turns->c, &turns->m) == 0);
    turns->turn++;
    if (i % 3) pthread_cond_broadcast(&turns->c);
    assert(pthread_mutex_unlock(&turns->m) == 0);
    if (i % 3 == 0) pthread_cond_broadcast(&turns->c);
  }
  return NULL;
}
static void kinds(void) {
  static struct Turns local;
  turns = &local;
  for (int k = 0; k < 12; k++) {
    static const int types[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK};
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, types[k % 3]);
    if (k % 2) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
    if (k / 3 == 3) pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (k / 3 == 2) pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_condattr_t ca;
    pthread_condattr_init(&ca);
    // The condition variable and the mutex are each shared or private.
    if (k / 3 == 1 || k == 6) pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
    assert(pthread_mutex_init(&local.m, &a) == 0 && pthread_cond_init(&local.c, &ca) == 0);
    local.turn = 0;
    local.all = 4;
    if (k % 3 && k / 3 != 2) assert(pthread_cond_wait(&local.c, &local.m) == EPERM);
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, take_turns, (void*)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert(local.turn == 1200);
    struct timespec past = {0, 0};
    pthread_mutex_lock(&local.m);
    assert(pthread_cond_timedwait(&local.c, &local.m, &past) == ETIMEDOUT);
    pthread_mutex_unlock(&local.m);
    assert(pthread_cond_destroy(&local.c) == 0 && pthread_mutex_destroy(&local.m) == 0);
  }
}

static void between_processes(void) {
  turns = mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_condattr_t ca;
  pthread_condattr_init(&ca);
  pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&turns->m, &a);
  pthread_cond_init(&turns->c, &ca);
  turns->all = 2;
  pid_t child = fork();
  if (child == 0) {
    take_turns((void*)1);
    _exit(0);
  }
  take_turns((void*)0);
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  assert(turns->turn == 600);
}

int main() {
  pthread_t t[kProducers + kConsumers];
  for (long i = 0; i < kConsumers; i++) pthread_create(&t[i], NULL, consume, (void*)(i + 1));
  for (int i = 0; i < kProducers; i++) pthread_create(&t[kConsumers + i], NULL, produce, NULL);
  for (int i = 0; i < kProducers + kConsumers; i++) pthread_join(t[i], NULL);
  printf("%ld\n", sum);
  timeouts();
  gates();
  signal_and_cancel();
  kinds();
  between_processes();
  return 0;
}
