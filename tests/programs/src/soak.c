// SPDX-License-Identifier: MIT
// Games for many threads, in which a lost or double wake-up, or a broken mutual exclusion, shows as a wrong sum or as a hang.
// Arguments: seconds, seed. Rounds of all games run until the time is over; each takes some milliseconds.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))
#define N 24

static unsigned seed;

static struct timespec in_us(clockid_t clock, long us) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += us * 1000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

static void all(void* (*run)(void*), int n) {
  pthread_t t[N];
  for (long i = 0; i < n; i++) CHECK(pthread_create(&t[i], NULL, run, (void*)i) == 0);
  for (int i = 0; i < n; i++) CHECK(pthread_join(t[i], NULL) == 0);
}

// ---- a ring of semaphores; tokens go round, some waits have timeouts ----
static sem_t ring[N];
static atomic_long hops;
static void* pass(void* p) {
  long i = (long)p;
  unsigned s = seed + (unsigned)i;
  for (int k = 0; k < 60; k++) {
    if (rand_r(&s) % 3) {
      CHECK(sem_wait(&ring[i]) == 0);
    } else {
      struct timespec t;
      do t = in_us(CLOCK_REALTIME, rand_r(&s) % 200);
      while (sem_timedwait(&ring[i], &t) != 0 && (errno == ETIMEDOUT || errno == EINTR));
    }
    atomic_fetch_add(&hops, 1);
    CHECK(sem_post(&ring[(i + 1) % N]) == 0);
  }
  return NULL;
}
static void semaphores(void) {
  atomic_store(&hops, 0);
  for (int i = 0; i < N; i++) sem_init(&ring[i], 0, i % 8 == 0);
  all(pass, N);
  CHECK(hops == N * 60);
  int left = 0, v;
  for (int i = 0; i < N; i++) sem_getvalue(&ring[i], &v), left += v;
  CHECK(left == 3);
}

// ---- a bounded buffer ----
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full;
static int buffer[4], count_in, count_out;
static atomic_long sum;
static void wait_a_while(pthread_cond_t* c, clockid_t clock, unsigned* s) {
  int r = 0;
  if (rand_r(s) % 2) {
    r = pthread_cond_wait(c, &lock);
  } else {
    struct timespec t = in_us(clock, rand_r(s) % 300);
    r = pthread_cond_timedwait(c, &lock, &t);
  }
  CHECK(r == 0 || r == ETIMEDOUT);
}
static void* produce_or_consume(void* p) {
  unsigned s = seed * 31 + (unsigned)(long)p;
  for (int k = 1; k <= 100; k++) {
    CHECK(pthread_mutex_lock(&lock) == 0);
    if ((long)p % 2) {
      while (count_in - count_out == 4) wait_a_while(&not_full, CLOCK_MONOTONIC, &s);
      buffer[count_in++ % 4] = k;
      if (rand_r(&s) % 8) pthread_cond_signal(&not_empty);
      else pthread_cond_broadcast(&not_empty);
    } else {
      while (count_in == count_out) wait_a_while(&not_empty, CLOCK_REALTIME, &s);
      atomic_fetch_add(&sum, buffer[count_out++ % 4]);
      pthread_cond_signal(&not_full);
    }
    CHECK(pthread_mutex_unlock(&lock) == 0);
  }
  return NULL;
}
static void conditions(void) {
  count_in = count_out = 0;
  atomic_store(&sum, 0);
  all(produce_or_consume, N);
  CHECK(sum == N / 2 * 5050);
}

// ---- broadcasts, in generations ----
static long generation, arrived;
static void* generations(void* p) {
  for (long g = 0; g < 40; g++) {
    pthread_mutex_lock(&lock);
    CHECK(generation == g);
    if (++arrived == N) {
      arrived = 0;
      generation++;
      pthread_cond_broadcast(&not_empty);
    } else {
      while (generation == g) pthread_cond_wait(&not_empty, &lock);
    }
    pthread_mutex_unlock(&lock);
  }
  return p;
}
static void broadcasts(void) {
  generation = arrived = 0;
  all(generations, N);
  CHECK(generation == 40);
}

// ---- mutexes of all kinds, with timeouts ----
static pthread_mutex_t mutexes[4];
static long guarded[4];
static atomic_long entered;
static void* locks(void* p) {
  unsigned s = seed * 7 + (unsigned)(long)p;
  for (int k = 0; k < 150; k++) {
    int i = rand_r(&s) % 4;
    if (rand_r(&s) % 4 == 0) {
      struct timespec t = in_us(CLOCK_REALTIME, rand_r(&s) % 100);
      int r = pthread_mutex_timedlock(&mutexes[i], &t);
      CHECK(r == 0 || r == ETIMEDOUT);
      if (r) continue;
    } else {
      CHECK(pthread_mutex_lock(&mutexes[i]) == 0);
    }
    long g = guarded[i];
    if (rand_r(&s) % 16 == 0) sched_yield();
    guarded[i] = g + 1;
    atomic_fetch_add(&entered, 1);
    CHECK(pthread_mutex_unlock(&mutexes[i]) == 0);
  }
  return NULL;
}
static void mutual_exclusion(void) {
  for (int i = 0; i < 4; i++) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(
        &a, (int[]){PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_ADAPTIVE_NP}[i]);
    pthread_mutex_init(&mutexes[i], &a);
    guarded[i] = 0;
  }
  atomic_store(&entered, 0);
  all(locks, N);
  CHECK(guarded[0] + guarded[1] + guarded[2] + guarded[3] == entered);
}

// ---- join: at once, late, with a timeout; detach; cancel ----
static atomic_long ended;
static void count_end(void* p) {
  atomic_fetch_add(&ended, 1);
  (void)p;
}
#define KINDS 7
static sem_t never;
static pthread_cond_t never_changed = PTHREAD_COND_INITIALIZER;
static __thread int signals;
static void on_signal(int sig) { signals += sig == SIGUSR1; }
static void unlock(void* p) { pthread_mutex_unlock(p); }
static void* brief(void* p) {
  long i = (long)p;
  pthread_cleanup_push(count_end, NULL);
  if (i == 1) sched_yield();
  if (i == 2) usleep(100);
  // They wait until they are cancelled, the last one only after a signal.
  if (i == 3) pause();
  if (i == 4) {
    pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mine);
    pthread_cleanup_push(unlock, &mine);
    for (;;) pthread_cond_wait(&never_changed, &mine);
    pthread_cleanup_pop(0);
  }
  if (i == 5)
    for (;;) sem_wait(&never);
  if (i == 6) {
    while (signals == 0) CHECK(sem_wait(&never) == -1 && errno == EINTR);
    for (;;) sem_wait(&never);
  }
  pthread_cleanup_pop(1);
  return p;
}
static void* make_and_join(void* p) {
  unsigned s = seed * 13 + (unsigned)(long)p;
  for (int k = 0; k < 8; k++) {
    pthread_t t[KINDS];
    for (long i = 0; i < KINDS; i++) CHECK(pthread_create(&t[i], NULL, brief, (void*)i) == 0);
    for (long i = 0; i < KINDS; i++) {
      void* r;
      if (i == 6) CHECK(pthread_kill(t[i], SIGUSR1) == 0);
      if (rand_r(&s) % 2) sched_yield();
      if (i >= 3) CHECK(pthread_cancel(t[i]) == 0);
      if (i == 0 && rand_r(&s) % 2) {
        CHECK(pthread_detach(t[i]) == 0);
        continue;
      }
      int e = ETIMEDOUT;
      while (rand_r(&s) % 2 && e == ETIMEDOUT) {
        struct timespec at = in_us(CLOCK_REALTIME, rand_r(&s) % 150);
        e = pthread_timedjoin_np(t[i], &r, &at);
        CHECK(e == 0 || e == ETIMEDOUT);
      }
      if (e) CHECK(pthread_join(t[i], &r) == 0);
      CHECK(r == (i >= 3 ? PTHREAD_CANCELED : (void*)i));
    }
  }
  return NULL;
}
static void lives(void) {
  atomic_store(&ended, 0);
  all(make_and_join, N / 2);
  while (atomic_load(&ended) != N / 2 * 8 * KINDS) sched_yield();
}

// ---- rwlock and barrier ----
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static long pair[2];
static atomic_long serial;
static void* read_and_write(void* p) {
  unsigned s = seed * 17 + (unsigned)(long)p;
  for (int k = 0; k < 30; k++) {
    if (rand_r(&s) % 3 == 0) {
      pthread_rwlock_wrlock(&rw);
      pair[0]++;
      if (rand_r(&s) % 4 == 0) sched_yield();
      pair[1]++;
    } else {
      pthread_rwlock_rdlock(&rw);
      CHECK(pair[0] == pair[1]);
    }
    CHECK(pthread_rwlock_unlock(&rw) == 0);
    if (k % 5 == 0 && pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) atomic_fetch_add(&serial, 1);
  }
  return NULL;
}
static void rwlocks_and_barriers(void) {
  atomic_store(&serial, 0);
  pthread_barrier_init(&barrier, NULL, N);
  all(read_and_write, N);
  pthread_barrier_destroy(&barrier);
  CHECK(serial == 6);
}

// ---- sleepers, hogs and spinners together ----
static atomic_int flag;
static void* mix(void* p) {
  long i = (long)p;
  if (i % 3 == 0) {
    for (int k = 0; k < 5; k++) CHECK(usleep(100) == 0 || errno == EINTR);
    atomic_fetch_add(&flag, 1);
  } else if (i % 3 == 1) {
    for (volatile int k = 0; k < 100000; k++);
    atomic_fetch_add(&flag, 1);
  } else {
    while (atomic_load(&flag) < N / 3) sched_yield();
  }
  return NULL;
}
static void mixture(void) {
  atomic_store(&flag, 0);
  all(mix, N);
}

int main(int argc, char** argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 1;
  seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
  struct sigaction sa = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &sa, NULL);
  sem_init(&never, 0, 0);
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_cond_init(&not_full, &a);
  static const struct {
    const char* name;
    void (*play)(void);
  } games[] = {{"semaphores", semaphores}, {"conditions", conditions},        {"broadcasts", broadcasts}, {"exclusion", mutual_exclusion},
               {"lives", lives},           {"rwlocks", rwlocks_and_barriers}, {"mixture", mixture}};
  struct timespec end = in_us(CLOCK_MONOTONIC, 0), now;
  end.tv_sec += (time_t)seconds;
  long rounds = 0;
  do {
    for (unsigned g = 0; g < sizeof games / sizeof *games; g++) {
      if (getenv("SOAK_TELL")) fprintf(stderr, "%ld %s\n", rounds, games[g].name);
      games[g].play();
    }
    rounds++;
    seed++;
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec < end.tv_sec);
  fprintf(stderr, "%ld rounds\n", rounds);
  puts("ok");
  return 0;
}
