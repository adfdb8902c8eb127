// SPDX-License-Identifier: MIT
// A sequence lock whose reader looks at the sequence before it reads, and not again after it.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
static atomic_int sequence, x, y;
static void log_line() { write(1, "", 0); }
static void* writes(void* p) {
  for (int i = 1; i <= 2; i++) {
    sequence++;
    x = i;
    log_line();
    y = i;
    sequence++;
  }
  return p;
}
static void* reads(void* p) {
  int before, a, b;
  do {
    while ((before = sequence) % 2) log_line();
    a = x;
    log_line();
    b = y;
#ifdef MENDED
  } while (sequence != before);
#else
  } while (0);
#endif
  assert(a == b);
  return p;
}
int main() {
  pthread_t t[2];
  pthread_create(&t[0], 0, reads, 0);
  pthread_create(&t[1], 0, writes, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
