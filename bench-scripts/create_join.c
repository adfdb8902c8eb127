#include "bench.h"

static void* nothing(void* p) { return p; }

static void batch(long n) {
  for (long i = 0; i < n; i++) {
    pthread_t t;
    CHECK(pthread_create(&t, NULL, nothing, NULL));
    CHECK(pthread_join(t, NULL));
  }
}

int main(void) { measure(batch, 500); }
