// SPDX-License-Identifier: MIT
// A work-stealing deque: the owner takes the last item without an exchange, although a thief may be taking it.
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
enum { kItems = 2, kNothing = -1 };
static atomic_int top, bottom;
static int items[kItems] = {0, 1};
static atomic_int done[kItems];
static void log_line() { write(1, "", 0); }
static int take() {
  int b = atomic_fetch_sub(&bottom, 1) - 1, t = top;
  log_line();
  if (t < b) return items[b];
  if (t == b) {
#ifdef MENDED
    int mine = atomic_compare_exchange_strong(&top, &t, t + 1);
    bottom = b + 1;
    return mine ? items[b] : kNothing;
#else
    top = t + 1;
    bottom = b + 1;
    return items[b];
#endif
  }
  bottom = b + 1;
  return kNothing;
}
static int steal() {
  int t = top, b = bottom;
  if (t >= b) return kNothing;
  int item = items[t];
  log_line();
  return atomic_compare_exchange_strong(&top, &t, t + 1) ? item : kNothing;
}
static void* steals(void* p) {
  int item = steal();
  if (item != kNothing) assert(done[item]++ == 0);
  return p;
}
int main() {
  pthread_t t[2];
  bottom = kItems;
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, steals, 0);
  for (int i = 0; i < kItems; i++) {
    int item = take();
    if (item != kNothing) assert(done[item]++ == 0);
  }
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
