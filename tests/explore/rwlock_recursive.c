// SPDX-License-Identifier: MIT
// A reader that locks for reading once more, while a writer waits that comes first (PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP).
#define _GNU_SOURCE
#include <pthread.h>
static pthread_rwlock_t lock;
static void* writes(void* p) {
  pthread_rwlock_wrlock(&lock);
  pthread_rwlock_unlock(&lock);
  return p;
}
int main() {
  pthread_t t;
  pthread_rwlockattr_t a;
  pthread_rwlockattr_init(&a);
  pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  pthread_rwlock_init(&lock, &a);
  pthread_create(&t, 0, writes, 0);
  pthread_rwlock_rdlock(&lock);
#ifndef MENDED
  pthread_rwlock_rdlock(&lock);
  pthread_rwlock_unlock(&lock);
#endif
  pthread_rwlock_unlock(&lock);
  pthread_join(t, 0);
}
