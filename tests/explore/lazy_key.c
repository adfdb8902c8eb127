// SPDX-License-Identifier: MIT
// Thread-specific data: two threads that come first both make the key, and what one has stored under the first key is not under the second.
#include <assert.h>
#include <pthread.h>
#include <unistd.h>
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int made;
static void make_key() {
  pthread_key_create(&key, 0);
  made = 1;
}
static void log_line() { write(1, "", 0); }
static void* uses(void* p) {
#ifdef MENDED
  pthread_once(&once, make_key);
#else
  if (!made) make_key();
#endif
  pthread_setspecific(key, p);
  log_line();
  assert(pthread_getspecific(key) == p);
  return 0;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, uses, &t[i]);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
