// SPDX-License-Identifier: MIT
// An eventfd adds up: one read takes the news of two items, but the reader takes one item for each read, and waits for news of the other.
#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>
enum { kItems = 3 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int news, items;
static void* takes(void* p) {
  for (int taken = 0; taken < kItems;) {
    struct pollfd for_news = {news, POLLIN, 0};
    uint64_t n;
    assert(poll(&for_news, 1, 10000) == 1);
    read(news, &n, sizeof n);
#ifndef MENDED
    n = 1;
#endif
    pthread_mutex_lock(&lock);
    items -= (int)n;
    pthread_mutex_unlock(&lock);
    taken += (int)n;
  }
  return p;
}
int main() {
  pthread_t t;
  uint64_t one = 1;
  news = eventfd(0, 0);
  pthread_create(&t, 0, takes, 0);
  for (int i = 0; i < kItems; i++) {
    usleep(50000);
    pthread_mutex_lock(&lock);
    items++;
    pthread_mutex_unlock(&lock);
    write(news, &one, sizeof one);
  }
  pthread_join(t, 0);
}
