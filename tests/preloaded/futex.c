// SPDX-License-Identifier: MIT
// Each wake-up that was counted ended one wait: plain and with bit sets, with deadlines on either clock, while words change.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kWords = 4, kWaiters = 24, kWakers = 4, kWaits = 4000 };
static atomic_int words[kWords], stop;
static atomic_long woken, ended, failed;

static long futex(atomic_int* word, int op, int value, const struct timespec* t, int bits) {
  return syscall(SYS_futex, word, op, value, t, NULL, bits);
}

static struct timespec in(clockid_t clock, long ns) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ns;
  if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
  return t;
}

static void* waits(void* p) {
  unsigned seed = (unsigned)(long)p + 1;
  for (int i = 0; i < kWaits; i++) {
    atomic_int* w = &words[rand_r(&seed) % kWords];
    long ns = rand_r(&seed) % 300000, r;
    int value = *w;
    struct timespec t = {0, ns};
    switch (rand_r(&seed) % 3) {
      case 0: r = futex(w, FUTEX_WAIT_PRIVATE, value, &t, 0); break;
      case 1:
        t = in(CLOCK_MONOTONIC, ns);
        r = futex(w, FUTEX_WAIT_BITSET_PRIVATE, value, &t, 1 << rand_r(&seed) % 3);
        break;
      default: t = in(CLOCK_REALTIME, ns); r = futex(w, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, value, &t, -1);
    }
    if (r == 0) ended++;
    else if (errno != ETIMEDOUT && errno != EAGAIN) failed++;
  }
  return NULL;
}

static void* wakes(void* p) {
  unsigned seed = (unsigned)(long)p + 77;
  while (!stop) {
    atomic_int* w = &words[rand_r(&seed) % kWords];
    long r = 0;
    if (rand_r(&seed) % 8 == 0) ++*w;
    switch (rand_r(&seed) % 4) {
      case 0: r = futex(w, FUTEX_WAKE_PRIVATE, 1, NULL, 0); break;
      case 1: r = futex(w, FUTEX_WAKE_BITSET_PRIVATE, 2, NULL, 2); break;
      case 2: r = futex(w, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, 0); break;
      default: usleep(50);
    }
    if (r < 0) failed++;
    else woken += r;
    if (rand_r(&seed) % 4 == 0) sched_yield();
  }
  return NULL;
}

// A signal ends a wait, unless its handler asks for restart and there is no time limit.
static atomic_int word, ready, handled;
static void on_signal(int sig) { handled++; }
static void* waits_for_signal(void* limit) {
  struct timespec t = {1000, 0};
  ready = 1;
  long r = futex(&word, FUTEX_WAIT_PRIVATE, 0, limit ? &t : NULL, 0);
  return (void*)(long)(r == 0 ? 0 : errno);
}
static long interrupted(int flags, int limit) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = flags};
  sigaction(SIGUSR1, &a, NULL);
  word = ready = handled = 0;
  pthread_t t;
  pthread_create(&t, NULL, waits_for_signal, (void*)(long)limit);
  while (!ready) sched_yield();
  void* r;
  struct timespec past = {0, 0};
  if (!(flags & SA_RESTART) || limit) {
    // Sends it again until the thread was in the wait.
    while (pthread_timedjoin_np(t, &r, &past) != 0) {
      pthread_kill(t, SIGUSR1);
      usleep(1000);
    }
    return (long)r;
  }
  for (int i = 1; i <= 10; i++) {
    pthread_kill(t, SIGUSR1);
    while (handled < i) sched_yield();
  }
  word = 1;
  while (pthread_timedjoin_np(t, &r, &past) != 0) {
    futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, 0);
    usleep(1000);
  }
  return (long)r == EAGAIN ? 0 : (long)r;  // EAGAIN: the thread came after the word had changed
}

int main() {
  pthread_t waiter[kWaiters], waker[kWakers];
  for (long i = 0; i < kWaiters; i++) pthread_create(&waiter[i], NULL, waits, (void*)i);
  for (long i = 0; i < kWakers; i++) pthread_create(&waker[i], NULL, wakes, (void*)i);
  for (int i = 0; i < kWaiters; i++) pthread_join(waiter[i], NULL);
  stop = 1;
  for (int i = 0; i < kWakers; i++) pthread_join(waker[i], NULL);
  printf("failed %ld, every wake counted once: %d\n", (long)failed, woken == ended);
  printf("signal: %ld %ld, with a limit: %ld %ld\n", interrupted(0, 0), interrupted(SA_RESTART, 0), interrupted(0, 1),
         interrupted(SA_RESTART, 1));
  return 0;
}
