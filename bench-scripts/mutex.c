// One argument: how many threads lock and unlock the same mutex.
#include "bench.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t guarded;

static void* body(void* p) {
  uint64_t n = 0;
  for (; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
    pthread_mutex_lock(&mutex);
    guarded++;
    pthread_mutex_unlock(&mutex);
  }
  sum += n;
  return p;
}

static void batch(long n) {
  for (long i = 0; i < n; i++) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  }
}

static void* sleeper(void* p) {
  pause();
  return p;
}

int main(int argc, char** argv) {
  long threads = argument(argc, argv, 1);
  if (threads == 1) {
    pthread_t t;  // with a single thread libc would leave out the atomic instructions
    CHECK(pthread_create(&t, NULL, sleeper, NULL));
    measure(batch, 1000000);
    exit(0);
  }
  measure_crowd(body, threads);
  if (guarded != sum) {
    fprintf(stderr, "the mutex let two in at once\n");
    return 1;
  }
}
