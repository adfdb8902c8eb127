#include "bench.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ping = PTHREAD_COND_INITIALIZER, pong = PTHREAD_COND_INITIALIZER;
static int partners_turn;

static void* partner(void* p) {
  pthread_mutex_lock(&mutex);
  for (;;) {
    while (!partners_turn) pthread_cond_wait(&ping, &mutex);
    partners_turn = 0;
    pthread_cond_signal(&pong);
  }
  return p;
}

static void batch(long n) {
  pthread_mutex_lock(&mutex);
  for (long i = 0; i < n; i++) {
    partners_turn = 1;
    pthread_cond_signal(&ping);
    while (partners_turn) pthread_cond_wait(&pong, &mutex);
  }
  pthread_mutex_unlock(&mutex);
}

int main(void) {
  pthread_t t;
  CHECK(pthread_create(&t, NULL, partner, NULL));
  measure(batch, 2000);
}
