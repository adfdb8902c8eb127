// SPDX-License-Identifier: MIT
// C11 threads, and the calls that let time pass: never early, ended by signals with the rest of the time.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static mtx_t m, timed;
static cnd_t c;
static once_flag flag = ONCE_FLAG_INIT;
static int n, inits, turn;
static tss_t key;
static int destroyed;

static void init(void) { inits++; }
static void destroy(void* p) { destroyed += p != NULL; }
static int work(void* p) {
  call_once(&flag, init);
  tss_set(key, p);
  for (int i = 0; i < 500; i++) {
    mtx_lock(&m);
    n++;
    mtx_unlock(&m);
    if (i % 50 == 0) thrd_yield();
  }
  mtx_lock(&m);
  while (turn != (int)(long)p) cnd_wait(&c, &m);
  turn++;
  cnd_broadcast(&c);
  mtx_unlock(&m);
  if ((long)p == 3) thrd_exit(-3);
  return (int)(long)p;
}

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
static void on_signal(int sig) { (void)sig; }
static volatile int left_ok, sleeping;
static void* sleeper(void* p) {
  struct timespec t = {100, 0}, left = {0, 0};
  sleeping = 1;
  int r = nanosleep(&t, &left);
  sleeping = 0;
  left_ok = r == -1 && errno == EINTR && left.tv_sec <= 100 && left.tv_sec >= 40;
  return p;
}

static void* full_seconds(void* p) {
  sleeping = 1;
  unsigned left = sleep(100);
  sleeping = 0;
  assert(left >= 40 && left <= 99);  // rounded down
  return p;
}
static void* dies_asleep(void* p) {
  struct timespec t = {100, 0}, at;
  switch ((long)p) {
    case 0: nanosleep(&t, NULL); break;
    case 1: sleep(100); break;
    case 2: usleep(100000000); break;
    case 3: clock_nanosleep(CLOCK_REALTIME, 0, &t, NULL); break;
    default:
      clock_gettime(CLOCK_MONOTONIC, &at);
      at.tv_sec += 100;
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
  }
  return NULL;
}

int main() {
  assert(mtx_init(&m, mtx_plain) == thrd_success && mtx_init(&timed, mtx_timed | mtx_recursive) == thrd_success);
  assert(cnd_init(&c) == thrd_success && tss_create(&key, destroy) == thrd_success);
  thrd_t t[8];
  turn = 1;
  for (long i = 0; i < 8; i++) assert(thrd_create(&t[i], work, (void*)(i + 1)) == thrd_success);
  int sum = 0;
  for (int i = 0; i < 8; i++) {
    int r;
    assert(thrd_join(t[i], &r) == thrd_success);
    sum += r;
  }
  printf("%d %d %d %d\n", n, inits, sum, destroyed);
  assert(mtx_lock(&timed) == thrd_success && mtx_trylock(&timed) == thrd_success);
  struct timespec past = {0, 0};
  mtx_lock(&m);
  assert(cnd_timedwait(&c, &m, &past) == thrd_timedout && mtx_trylock(&m) == thrd_busy);

  double before = seconds(CLOCK_MONOTONIC);
  usleep(20000);
  assert(seconds(CLOCK_MONOTONIC) - before >= 0.02);
  struct timespec at, bad = {0, 2000000000}, short_time = {0, 5000000};
  static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI};
  for (int k = 0; k < 4; k++) {
    clockid_t clock = clocks[k];
    double start = seconds(clock);
    assert(clock_nanosleep(clock, 0, &short_time, NULL) == 0 && seconds(clock) - start >= 0.005);
    clock_gettime(clock, &at);
    at.tv_nsec += 10000000;
    if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
    assert(clock_nanosleep(clock, TIMER_ABSTIME, &at, NULL) == 0);
    assert(seconds(clock) >= at.tv_sec + at.tv_nsec / 1e9);
    assert(clock_nanosleep(clock, TIMER_ABSTIME, &past, NULL) == 0);
    assert(clock_nanosleep(clock, 0, &bad, NULL) == EINVAL);
  }
  assert(clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &short_time, NULL) == EINVAL);
  assert(nanosleep(&bad, NULL) == -1 && errno == EINVAL && sleep(0) == 0);

  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = on_signal;
  sigaction(SIGUSR1, &sa, NULL);
  pthread_t p;
  pthread_create(&p, NULL, sleeper, NULL);
  while (!sleeping) usleep(1000);
  while (sleeping) {  // the first may come before it sleeps
    usleep(10000);
    pthread_kill(p, SIGUSR1);
  }
  pthread_join(p, NULL);
  printf("left %d\n", left_ok);

  pthread_create(&p, NULL, full_seconds, NULL);
  while (!sleeping) usleep(1000);
  while (sleeping) {
    usleep(10000);
    pthread_kill(p, SIGUSR1);
  }
  pthread_join(p, NULL);
  for (long k = 0; k < 5; k++) {
    pthread_create(&p, NULL, dies_asleep, (void*)k);
    if (k % 2) usleep(5000);
    void* r;
    pthread_cancel(p);
    pthread_join(p, &r);
    assert(r == PTHREAD_CANCELED);
  }
  return 0;
}
