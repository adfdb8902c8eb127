// SPDX-License-Identifier: MIT
// For a thread's values of many keys libc allocates memory. That goes back after the thread's end.
#include <assert.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { kThreads = 1500, kRounds = 4, kKeys = 100 };
static pthread_key_t keys[kKeys];
static pthread_barrier_t all_there;

static void* nothing(void* p) { return p; }
static void* use_key(void* p) {
  assert(pthread_setspecific(keys[kKeys / 2], p) == 0);
  pthread_barrier_wait(&all_there);
  return p;
}

int main() {
  static pthread_t t[kThreads];
  // Makes the library look at keys before the program takes the first ones.
  assert(pthread_create(t, NULL, nothing, NULL) == 0 && pthread_join(t[0], NULL) == 0);
  for (int i = 0; i < kKeys; i++) assert(pthread_key_create(&keys[i], NULL) == 0);
  size_t used = 0;
  for (int round = 0; round < kRounds; round++) {
    pthread_barrier_init(&all_there, NULL, kThreads);
    for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, use_key, keys) == 0);
    for (int i = 0; i < kThreads; i++) assert(pthread_join(t[i], NULL) == 0);
    usleep(800000);  // the library releases idle TCBs meanwhile
    if (round == 0) used = mallinfo2().uordblks;
  }
  // A busy machine may take long for that.
  for (int i = 0; i < 300 && mallinfo2().uordblks >= used + 512 * 1024; i++) usleep(100000);
  assert(mallinfo2().uordblks < used + 512 * 1024);
  puts("given back");
  return 0;
}
