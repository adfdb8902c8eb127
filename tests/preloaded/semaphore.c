// SPDX-License-Identifier: MIT
// Semaphores: under load, in handlers and beside them, before there is any thread, named and shared between processes. A semaphore may be
// destroyed as soon as a wait has returned.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
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

static sem_t s;
static atomic_int inside;
enum { kThreads = 24, kRounds = 1000, kAtOnce = 3 };
static void* load(void* p) {
  unsigned seed = (unsigned)(size_t)p;
  for (int i = 0; i < kRounds; i++) {
    struct timespec t = in_ms(CLOCK_REALTIME, rand_r(&seed) % 2), m = in_ms(CLOCK_MONOTONIC, rand_r(&seed) % 2);
    int how = rand_r(&seed) % 8;
    int e = how == 0   ? sem_timedwait(&s, &t)
            : how == 1 ? sem_clockwait(&s, CLOCK_MONOTONIC, &m)
            : how == 2 ? sem_trywait(&s)
                       : sem_wait(&s);
    if (e != 0) {
      assert(errno == (how == 2 ? EAGAIN : ETIMEDOUT));
      sched_yield();
      i--;
      continue;
    }
    assert(atomic_fetch_add(&inside, 1) < kAtOnce);
    if (i % 8 == 0) sched_yield();
    atomic_fetch_sub(&inside, 1);
    sem_post(&s);
  }
  return NULL;
}

static sem_t ping, pong;
static void* echo(void* p) {
  for (int i = 0; i < 20000; i++) {
    sem_wait(&ping);
    sem_post(&pong);
  }
  return p;
}

static void* post_it(void* p) {
  sem_post(p);
  return NULL;
}

static sem_t from_handler;
static void on_signal(int sig) {
  (void)sig;
  sem_post(&from_handler);
}
static void* wait_for_handler(void* p) {
  while (sem_wait(&from_handler) != 0) assert(errno == EINTR);
  return p;
}

static void handle(int sig, void (*handler)(int), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = handler;
  sa.sa_flags = flags;
  sigaction(sig, &sa, NULL);
}
static void every(long us) {
  struct itimerval t = {{0, us}, {0, us}};
  setitimer(ITIMER_REAL, &t, NULL);
}

static sem_t from_thread;
static void* post_from_thread(void* p) {
  sem_post(&from_thread);
  return p;
}
static void on_timer(union sigval v) {
  (void)v;
  pthread_t t;
  assert(pthread_create(&t, NULL, post_from_thread, NULL) == 0);
  pthread_join(t, NULL);
}
static void on_alarm(int sig) { (void)sig; }

static void before_any_thread(void) {
  sem_t never;
  sem_init(&never, 0, 0);
  handle(SIGALRM, on_alarm, 0);
  every(10000);
  assert(sem_wait(&never) == -1 && errno == EINTR);
  struct timespec far = in_ms(CLOCK_REALTIME, 100000);
  assert(sem_timedwait(&never, &far) == -1 && errno == EINTR);
  sem_init(&from_handler, 0, 0);
  handle(SIGALRM, on_signal, SA_RESTART);
  every(100);
  for (int i = 0; i < 2000; i++) assert(sem_wait(&from_handler) == 0);
  every(0);
  // A thread of libc's own makes the first thread. That ends a wait which began when there was no thread.
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_THREAD;
  e.sigev_notify_function = on_timer;
  timer_t timer;
  assert(timer_create(CLOCK_MONOTONIC, &e, &timer) == 0);
  struct itimerspec soon = {{0, 0}, {0, 20000000}};
  timer_settime(timer, 0, &soon, NULL);
  assert(sem_wait(&from_thread) == 0);
  timer_delete(timer);
}

static sem_t blocked;
static atomic_int waiting, over, handled;
static void count_signal(int sig) {
  (void)sig;
  handled++;
}
static void* interrupted(void* p) {
  struct timespec far = in_ms(CLOCK_REALTIME, 100000);
  waiting = 1;
  int e = p ? sem_timedwait(&blocked, &far) : sem_wait(&blocked);
  assert(e == -1 && errno == EINTR);
  over = 1;
  return NULL;
}
static void* not_interrupted(void* p) {
  waiting = 1;
  assert(sem_wait(&blocked) == 0);
  over = 1;
  return p;
}
static void interrupts(void) {
  pthread_t t;
  sem_init(&blocked, 0, 0);
  for (int k = 0; k < 3; k++) {  // sem_wait, sem_timedwait, and sem_timedwait with SA_RESTART, which has no effect
    handle(SIGUSR2, count_signal, k == 2 ? SA_RESTART : 0);
    waiting = over = 0;
    pthread_create(&t, NULL, interrupted, k ? &blocked : NULL);
    while (!waiting) sched_yield();
    while (!over) {  // the first signal may come before the wait
      pthread_kill(t, SIGUSR2);
      usleep(1000);
    }
    pthread_join(t, NULL);
  }
  handle(SIGUSR2, count_signal, SA_RESTART);
  waiting = over = handled = 0;
  pthread_create(&t, NULL, not_interrupted, NULL);
  while (!waiting) sched_yield();
  for (int i = 1; i <= 20; i++) {
    pthread_kill(t, SIGUSR2);
    while (handled < i) usleep(200);
    assert(!over);
  }
  sem_post(&blocked);
  pthread_join(t, NULL);
}

static void* cancelled(void* p) {
  waiting = 1;
  for (;;) assert(sem_wait(p) == 0 || errno == EINTR);
}
static void cancellation(void) {
  for (int i = 0; i < 300; i++) {
    pthread_t a, b;
    void* r;
    sem_init(&blocked, 0, 0);
    waiting = 0;
    pthread_create(&a, NULL, cancelled, &blocked);
    while (i % 2 && !waiting) sched_yield();
    pthread_cancel(a);
    pthread_join(a, &r);
    assert(r == PTHREAD_CANCELED);
    // No thread waits any more, and no permit was taken.
    pthread_create(&b, NULL, post_it, &blocked);
    sem_wait(&blocked);
    pthread_join(b, NULL);
    int v = -1;
    assert(sem_getvalue(&blocked, &v) == 0 && v == 0);
  }
}

int main() {
  before_any_thread();
  assert(sem_init(&s, 0, (unsigned)SEM_VALUE_MAX + 1) == -1 && errno == EINVAL);
  sem_init(&s, 0, SEM_VALUE_MAX);
  assert(sem_post(&s) == -1 && errno == EOVERFLOW);
  sem_init(&s, 0, kAtOnce);
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, load, (void*)(i + 1));
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  int v;
  sem_getvalue(&s, &v);
  printf("value %d\n", v);

  sem_init(&ping, 0, 0);
  sem_init(&pong, 0, 0);
  pthread_create(&t[0], NULL, echo, NULL);
  for (int i = 0; i < 20000; i++) {
    sem_post(&ping);
    sem_wait(&pong);
  }
  pthread_join(t[0], NULL);

  // The semaphore is destroyed and overwritten as soon as the wait has returned.
  for (int i = 0; i < 2000; i++) {
    sem_t* one = malloc(sizeof *one);
    sem_init(one, 0, 0);
    pthread_create(&t[0], NULL, post_it, one);
    sem_wait(one);
    sem_destroy(one);
    memset(one, 0x5a, sizeof *one);
    free(one);
    pthread_join(t[0], NULL);
  }

  signal(SIGUSR1, on_signal);
  sem_init(&from_handler, 0, 0);
  for (int i = 0; i < 200; i++) {
    pthread_create(&t[0], NULL, wait_for_handler, NULL);
    if (i % 2) sched_yield();
    pthread_kill(t[0], SIGUSR1);
    pthread_join(t[0], NULL);
  }

  interrupts();
  cancellation();

  char name[64];
  snprintf(name, sizeof name, "/fiberthread-test-%d", getpid());
  sem_t* named = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
  sem_t* shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(named != SEM_FAILED && sem_init(shared, 1, 0) == 0);
  pid_t child = fork();
  if (child == 0) {
    sem_wait(shared);
    sem_post(named);
    _exit(0);
  }
  sem_post(shared);
  assert(sem_wait(named) == 0);
  waitpid(child, NULL, 0);
  sem_close(named);
  sem_unlink(name);
  puts("ok");
  return 0;
}
