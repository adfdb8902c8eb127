// SPDX-License-Identifier: MIT
// Two variables that belong together, and are read at two times. As in Mozilla's bug of a string's contents and length.
#include <assert.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int contents[4], size;
static void* grows(void* p) {
  for (int i = 0; i < 2; i++) {
    pthread_mutex_lock(&lock);
    contents[size] = 1;
#ifndef MENDED
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&lock);
#endif
    size++;
    pthread_mutex_unlock(&lock);
  }
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, 0, grows, 0);
  pthread_mutex_lock(&lock);
  int sum = 0;
  for (int i = 0; i < 4; i++) sum += contents[i];
  assert(sum == size);
  pthread_mutex_unlock(&lock);
  pthread_join(t, 0);
}
