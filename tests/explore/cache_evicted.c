// SPDX-License-Identifier: MIT
// A cache under a read-write lock: an entry that was found as a reader is used after the unlock, and a writer evicts it before.
#include <assert.h>
#include <pthread.h>
#include <string.h>
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static char entry[8] = "answer";
static int is_cached = 1;
static void* looks_up(void* p) {
  pthread_rwlock_rdlock(&lock);
  const char* found = is_cached ? entry : 0;
#ifdef MENDED
  if (found) assert(!strcmp(found, "answer"));
#endif
  pthread_rwlock_unlock(&lock);
#ifndef MENDED
  if (found) assert(!strcmp(found, "answer"));
#endif
  return p;
}
static void* evicts(void* p) {
  pthread_rwlock_wrlock(&lock);
  is_cached = 0;
  memset(entry, 0, sizeof entry);
  pthread_rwlock_unlock(&lock);
  return p;
}
int main() {
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, i == 2 ? evicts : looks_up, 0);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
}
