// Creates all, then joins all.
#include "bench.h"

static void* nothing(void* p) { return p; }

static void batch(long n) {
  pthread_t t[n];
  for (long i = 0; i < n; i++) CHECK(pthread_create(&t[i], NULL, nothing, NULL));
  for (long i = 0; i < n; i++) CHECK(pthread_join(t[i], NULL));
}

int main(int argc, char** argv) { measure(batch, argument(argc, argv, 500)); }
