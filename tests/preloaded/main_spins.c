// SPDX-License-Identifier: MIT
// The main thread spins until others have done something, on as few workers as possible.
#include <pthread.h>
#include <stdio.h>
static volatile int flags[8];
static void* set(void* p) {
  *(volatile int*)p = 1;
  return 0;
}
int main() {
  for (int round = 0; round < 3; round++) {
    pthread_t t[8];
    for (int i = 0; i < 8; i++) flags[i] = 0;
    for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, set, (void*)&flags[i]);
    for (int i = 0; i < 8; i++)
      while (!flags[i]) {
      }
    for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
  }
  puts("ok");
  return 0;
}
