// SPDX-License-Identifier: MIT
// A storm of signals on threads that do everything else. Handlers call what POSIX calls async-signal-safe, wherever they interrupt.
// Handlers wait as a garbage collector's do. Nothing is lost.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 6, kRounds = 300, kStops = 60, kQueued = 2000 };
static pthread_t threads[kThreads];
static sem_t handled, stopped, tokens;
static int pipe_fd[2];
static volatile int end;
static long sent;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;

static void handle(int sig, void (*handler)(int, siginfo_t*, void*), int flags, int also) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = handler;
  sa.sa_flags = flags | SA_SIGINFO;
  if (also) sigaddset(&sa.sa_mask, also);
  assert(sigaction(sig, &sa, NULL) == 0);
}

static __thread int in_usr1;
static void usr1(int sig, siginfo_t* info, void* context) {
  int error = errno;
  assert(!in_usr1++);
  sigset_t s, old;
  sigemptyset(&s);
  sigaddset(&s, SIGALRM);
  sigprocmask(SIG_BLOCK, &s, &old);
  assert(sigismember(&old, SIGUSR1));
  assert(write(pipe_fd[1], "x", 1) == 1);
  pthread_kill(pthread_self(), SIGUSR2);
  sigprocmask(SIG_SETMASK, &old, NULL);
  clock_gettime(CLOCK_MONOTONIC, &(struct timespec){0});
  sem_post(&tokens);
  assert(sem_trywait(&tokens) == 0 || errno == EAGAIN);
  sem_post(&handled);
  in_usr1--;
  errno = error;
}
static volatile int usr2_runs;
static void usr2(int sig, siginfo_t* info, void* context) { __atomic_fetch_add(&usr2_runs, 1, __ATOMIC_SEQ_CST); }

// Stops the world as Boehm's collector does. The handler reports that it is there, and waits for the other signal.
static volatile long world;
static void stop(int sig, siginfo_t* info, void* context) {
  int error = errno;
  long w = world;
  sem_post(&stopped);
  sigset_t s;
  sigfillset(&s);
  sigdelset(&s, SIGXCPU);
  while (world == w) sigsuspend(&s);
  sem_post(&stopped);
  errno = error;
}
static void start(int sig, siginfo_t* info, void* context) {}

static long queued_sum, queued_last;
static int queued_bad, in_order;
static void queued(int sig, siginfo_t* info, void* context) {
  if (in_order && info->si_value.sival_int != queued_last + 1) queued_bad++;
  queued_last = info->si_value.sival_int;
  queued_sum += info->si_value.sival_int;
}

static void* work(void* p) {
  unsigned seed = (unsigned)(long)p + 1;
  while (!end) {
    switch (rand_r(&seed) % 8) {
      case 0: sched_yield(); break;
      case 1: usleep(rand_r(&seed) % 50); break;
      case 2: {
        void* m = malloc(100 + rand_r(&seed) % 5000);
        memset(m, 1, 100);
        free(m);
        break;
      }
      case 3:
        pthread_mutex_lock(&mutex);
        pthread_cond_signal(&cond);
        pthread_mutex_unlock(&mutex);
        break;
      case 4: {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 50000;
        if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
        pthread_mutex_lock(&mutex);
        pthread_cond_timedwait(&cond, &mutex, &t);
        pthread_mutex_unlock(&mutex);
        break;
      }
      case 5: {
        double d = 1;
        for (int i = 1; i < 2000; i++) d = d * 1.0001 + 1.0 / i;
        assert(d > 1);
        break;
      }
      case 6: {
        struct timespec none = {0, 1000};
        sigset_t s;
        sigemptyset(&s);
        pselect(0, NULL, NULL, NULL, &none, &s);
        break;
      }
      case 7: {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        while (sem_timedwait(&tokens, &t) < 0 && errno == EINTR) {
        }
      }
    }
  }
  return p;
}

static void* spray(void* p) {
  for (int i = 0; i < kRounds; i++) {
    for (int k = 0; k < kThreads; k++) assert(pthread_kill(threads[k], SIGUSR1) == 0);
    if (i % 4 == 0) kill(getpid(), SIGUSR2);
    for (int k = 0; k < kThreads; k++)
      while (sem_wait(&handled)) {
      }
  }
  return p;
}
static void* drain(void* p) {
  char c[64];
  long n = 0;
  for (ssize_t r; (r = read(pipe_fd[0], c, sizeof c)) != 0;) {
    if (r < 0) {
      assert(errno == EINTR);
      continue;
    }
    n += r;
    if (c[r - 1] == 'e') return (void*)(n - 1);
  }
  return NULL;
}

// This thread only runs handlers. A signal that comes at the end of one handler must not wait for the next signal.
static volatile int burst_seen, burst_end;
static void burst(int sig, siginfo_t* info, void* context) { burst_seen++; }
static void* only_spins(void* p) {
  sem_post(&tokens);
  while (!burst_end) {
  }
  return p;
}

int main() {
  sem_init(&handled, 0, 0);
  sem_init(&stopped, 0, 0);
  sem_init(&tokens, 0, 0);
  assert(pipe(pipe_fd) == 0);
  handle(SIGUSR1, usr1, SA_RESTART, 0);
  handle(SIGUSR2, usr2, SA_RESTART, 0);
  handle(SIGPWR, stop, SA_RESTART, SIGXCPU);
  handle(SIGXCPU, start, SA_RESTART, 0);
  handle(SIGRTMIN, queued, 0, 0);
  for (long i = 0; i < kThreads; i++) pthread_create(&threads[i], NULL, work, (void*)i);
  pthread_t sprayer, drainer;
  pthread_create(&drainer, NULL, drain, NULL);
  pthread_create(&sprayer, NULL, spray, NULL);

  // Meanwhile main stops the world again and again.
  for (int i = 0; i < kStops; i++) {
    for (int k = 0; k < kThreads; k++) assert(pthread_kill(threads[k], SIGPWR) == 0);
    for (int k = 0; k < kThreads; k++)
      while (sem_wait(&stopped)) assert(errno == EINTR);
    world++;
    for (int k = 0; k < kThreads; k++) assert(pthread_kill(threads[k], SIGXCPU) == 0);
    for (int k = 0; k < kThreads; k++)
      while (sem_wait(&stopped)) assert(errno == EINTR);
  }
  pthread_join(sprayer, NULL);
  end = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
  assert(write(pipe_fd[1], "e", 1) == 1);
  void* r;
  pthread_join(drainer, &r);
  int value;
  sem_getvalue(&handled, &value);
  printf("handled %ld, left %d, usr2 %d, stops %ld\n", (long)r, value, usr2_runs >= kThreads, world);

  // A flood of signals to the process and to the thread. None is lost, and those to the thread come in order.
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  for (int round = 0; round < 2; round++) {
    queued_last = 0;
    in_order = round;
    for (int i = 1; i <= kQueued; i++) {
      union sigval v = {.sival_int = i};
      if (round) pthread_sigqueue(pthread_self(), SIGRTMIN, v);
      else assert(sigqueue(getpid(), SIGRTMIN, v) == 0);
    }
    pthread_sigmask(SIG_UNBLOCK, &s, NULL);
    pthread_sigmask(SIG_BLOCK, &s, NULL);
  }
  handle(SIGRTMIN + 1, burst, 0, 0);
  pthread_t spinner;
  while (sem_trywait(&tokens) == 0) {
  }
  pthread_create(&spinner, NULL, only_spins, NULL);
  sem_wait(&tokens);
  union sigval none = {0};
  for (int i = 0; i < 400; i++) {
    int n = 1 + i % 3;
    for (int k = 0; k < n; k++) {
      for (volatile int pause = 0; pause < i % 97 * 20; pause++) {
      }
      assert(pthread_sigqueue(spinner, SIGRTMIN + 1, none) == 0);
    }
    sent += n;
    while (burst_seen < sent) sched_yield();
  }
  burst_end = 1;
  pthread_join(spinner, NULL);
  printf("bursts: %d\n", burst_seen);
  printf("flood: %ld, out of order %d\n", queued_sum, queued_bad);
  return 0;
}
