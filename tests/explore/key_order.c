// SPDX-License-Identifier: MIT
// Thread-specific destructors run in the order of their keys, which is that of the first uses. If the log is used first, it is closed before the
// cache is flushed, which logs.
#include <assert.h>
#include <pthread.h>
static pthread_once_t log_once = PTHREAD_ONCE_INIT, cache_once = PTHREAD_ONCE_INIT;
static pthread_key_t log_key, cache_key;
static __thread int log_is_closed;
static void close_log(void* p) { log_is_closed = 1; }
static void make_log() { pthread_key_create(&log_key, close_log); }
static void log_line() {
  assert(!log_is_closed);
  pthread_once(&log_once, make_log);
  pthread_setspecific(log_key, "log");
}
static void flush_cache(void* p) { log_line(); }
static void make_cache() { pthread_key_create(&cache_key, flush_cache); }
static void use_cache() {
  pthread_once(&cache_once, make_cache);
  pthread_setspecific(cache_key, "cache");
}
static void* caches_and_logs(void* p) {
  use_cache();
  log_line();
  return p;
}
static void* logs(void* p) {
  log_line();
  return p;
}
int main() {
  pthread_t t[2];
#ifdef MENDED
  use_cache();
  log_line();
#endif
  pthread_create(&t[0], 0, caches_and_logs, 0);
  pthread_create(&t[1], 0, logs, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
}
