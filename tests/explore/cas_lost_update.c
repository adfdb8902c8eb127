// SPDX-License-Identifier: MIT
// A lost update: the loop tries the exchange again, but with the sum that it computed before another thread's addition.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
static atomic_int sum;
static void log_line() { write(1, "", 0); }
static void* adds(void* p) {
  for (int i = 0; i < 2; i++) {
    int old = atomic_load(&sum), new = old + 1;
    log_line();
#ifdef MENDED
    while (!atomic_compare_exchange_strong(&sum, &old, new)) new = old + 1;
#else
    while (!atomic_compare_exchange_strong(&sum, &old, new)) continue;
#endif
  }
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, adds, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  assert(sum == 4);
}
