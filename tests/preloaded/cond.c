// Condition variables: both clocks, broadcast, a bounded queue under load, destruction after a broadcast.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

// Who has been woken by a broadcast may free the object at once.
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

int main() {
  pthread_t t[kProducers + kConsumers];
  for (long i = 0; i < kConsumers; i++) pthread_create(&t[i], NULL, consume, (void*)(i + 1));
  for (int i = 0; i < kProducers; i++) pthread_create(&t[kConsumers + i], NULL, produce, NULL);
  for (int i = 0; i < kProducers + kConsumers; i++) pthread_join(t[i], NULL);
  printf("%ld\n", sum);
  timeouts();
  gates();
  return 0;
}
