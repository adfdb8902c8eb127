#include "bench.h"

static void* body(void* p) {
  uint64_t n = 0;
  for (; !atomic_load_explicit(&stop, memory_order_relaxed); n++) sched_yield();
  sum += n;
  return p;
}

int main(int argc, char** argv) { measure_crowd(body, argument(argc, argv, 16)); }
