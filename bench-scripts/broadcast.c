// One argument: how many threads wait for the broadcast. Prints the time until all of them ran, for each.
#include "bench.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t go = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static long threads, waiting, woken, generation;

static void* body(void* p) {
  pthread_mutex_lock(&mutex);
  for (;;) {
    long seen = generation;
    if (++waiting == threads) pthread_cond_signal(&done);
    while (generation == seen) pthread_cond_wait(&go, &mutex);
    if (++woken == threads) pthread_cond_signal(&done);
  }
  return p;
}

int main(int argc, char** argv) {
  threads = argument(argc, argv, 1000);
  for (long i = 0; i < threads; i++) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, body, NULL));
  }
  uint64_t total = 0;
  const int rounds = 20;
  for (int round = -1; round < rounds; round++) {
    pthread_mutex_lock(&mutex);
    while (waiting < threads) pthread_cond_wait(&done, &mutex);
    waiting = woken = 0;
    uint64_t start = now_ns();
    generation++;
    pthread_cond_broadcast(&go);
    while (woken < threads) pthread_cond_wait(&done, &mutex);
    if (round >= 0) total += now_ns() - start;  // the first one warms up
    pthread_mutex_unlock(&mutex);
  }
  printf("%.2f\n", (double)total / rounds / threads);
  fflush(stdout);
  _exit(0);
}
