// SPDX-License-Identifier: MIT
// Atomicity: the balance is read under the lock, and written under the lock, but the lock is free in between.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int balance = 100;
static void* withdraws(void* p) {
  pthread_mutex_lock(&lock);
  int now = balance;
#ifndef MENDED
  pthread_mutex_unlock(&lock);
  pthread_mutex_lock(&lock);
#endif
  balance = now - 10;
  pthread_mutex_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, withdraws, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  assert(balance == 70);
}
