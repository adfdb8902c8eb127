// SPDX-License-Identifier: MIT
// Deadlock of many: philosophers who all take the left fork first.
#include <pthread.h>
enum { kN = 4 };
static pthread_mutex_t fork_of[kN];
static void* eats(void* p) {
  long i = (long)p, left = i, right = (i + 1) % kN;
#ifdef MENDED
  if (i == kN - 1) left = 0, right = kN - 1;
#endif
  for (int turn = 0; turn < 2; turn++) {
    pthread_mutex_lock(&fork_of[left]);
    pthread_mutex_lock(&fork_of[right]);
    pthread_mutex_unlock(&fork_of[right]);
    pthread_mutex_unlock(&fork_of[left]);
  }
  return 0;
}
int main() {
  pthread_t t[kN];
  for (long i = 0; i < kN; i++) pthread_mutex_init(&fork_of[i], 0);
  for (long i = 0; i < kN; i++) pthread_create(&t[i], 0, eats, (void*)i);
  for (int i = 0; i < kN; i++) pthread_join(t[i], 0);
}
