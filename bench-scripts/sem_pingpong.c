#include "bench.h"

static sem_t ping, pong;

static void* partner(void* p) {
  for (;;) {
    sem_wait(&ping);
    sem_post(&pong);
  }
  return p;
}

static void batch(long n) {
  for (long i = 0; i < n; i++) {
    sem_post(&ping);
    sem_wait(&pong);
  }
}

int main(void) {
  pthread_t t;
  sem_init(&ping, 0, 0);
  sem_init(&pong, 0, 0);
  CHECK(pthread_create(&t, NULL, partner, NULL));
  measure(batch, 5000);
}
