// SPDX-License-Identifier: MIT
// Check, then act: the pointer is read twice, and another thread takes it away in between.
#include <pthread.h>
struct Order {
  int amount;
};
static struct Order order = {7};
static struct Order* volatile current = &order;
static volatile int sum;
static void* serves(void* p) {
#ifdef MENDED
  struct Order* mine = current;
  if (mine) sum = mine->amount;
#else
  if (current) sum = current->amount;
#endif
  return p;
}
static void* withdraws(void* p) {
  current = 0;
  return p;
}
int main() {
  pthread_t a, b;
  pthread_create(&a, 0, serves, 0);
  pthread_create(&b, 0, withdraws, 0);
  pthread_join(a, 0);
  pthread_join(b, 0);
}
