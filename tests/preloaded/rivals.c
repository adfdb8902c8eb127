// SPDX-License-Identifier: MIT
// Threads that hand work to each other all the time, beside other processes that want the CPUs: first these, then none, then threads of their
// own that compute. (The library then changes how many workers it has.) Nothing is lost, and all come to their end.
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kPairs = 16, kRivals = 2, kHogs = 2 };
static const double kPart = 0.8;  // seconds
static struct pair {
  sem_t to[2];
  long sent, got;
} pairs[kPairs];
static atomic_int stop;
static atomic_long computed;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
static void* sender(void* p) {
  struct pair* mine = p;
  for (int last = 0; !last;) {
    last = stop;
    mine->sent++;
    sem_post(&mine->to[0]);
    while (sem_wait(&mine->to[1])) {
    }
  }
  mine->sent = -mine->sent;  // no more will come
  sem_post(&mine->to[0]);
  return NULL;
}
static void* receiver(void* p) {
  struct pair* mine = p;
  for (;;) {
    while (sem_wait(&mine->to[0])) {
    }
    if (mine->sent < 0) return NULL;
    mine->got++;
    sem_post(&mine->to[1]);
  }
}
static void* hog(void* p) {
  for (long n = 0; !stop; n++)
    if (n % 1000 == 0) computed++;
  return p;
}

int main(void) {
  pthread_t t[2 * kPairs], h[kHogs];
  pid_t rivals[kRivals];
  for (int i = 0; i < kRivals; i++) {
    if ((rivals[i] = fork()) == 0) {
      for (double end = now() + 30; now() < end;) {
      }
      _exit(0);
    }
    assert(rivals[i] > 0);
  }
  for (int i = 0; i < kPairs; i++) {
    sem_init(&pairs[i].to[0], 0, 0), sem_init(&pairs[i].to[1], 0, 0);
    assert(pthread_create(&t[2 * i], NULL, sender, &pairs[i]) == 0 && pthread_create(&t[2 * i + 1], NULL, receiver, &pairs[i]) == 0);
  }
  for (double end = now() + kPart; now() < end;) usleep(10000);
  for (int i = 0; i < kRivals; i++) assert(kill(rivals[i], SIGKILL) == 0 && waitpid(rivals[i], NULL, 0) == rivals[i]);
  for (double end = now() + kPart; now() < end;) usleep(10000);
  for (long i = 0; i < kHogs; i++) assert(pthread_create(&h[i], NULL, hog, NULL) == 0);
  while (computed < 10) usleep(10000);
  stop = 1;
  for (int i = 0; i < kHogs; i++) pthread_join(h[i], NULL);
  for (int i = 0; i < 2 * kPairs; i++) pthread_join(t[i], NULL);
  int lost = 0;
  for (int i = 0; i < kPairs; i++) lost += pairs[i].got != -pairs[i].sent;
  printf("pairs that lost something: %d\n", lost);
}
