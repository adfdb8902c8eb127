// SPDX-License-Identifier: MIT
// Fork: another thread may hold the lock of the log at the moment of the fork. In the child that thread is not there, and the lock is held for ever.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void lock_log() { pthread_mutex_lock(&log_lock); }
static void unlock_log() { pthread_mutex_unlock(&log_lock); }
static void log_line() {
  lock_log();
  write(2, "", 0);
  unlock_log();
}
static void* works(void* p) {
  log_line();
  return p;
}
int main() {
  pthread_t t;
  int status = 0;
#ifdef MENDED
  pthread_atfork(lock_log, unlock_log, unlock_log);
#endif
  pthread_create(&t, 0, works, 0);
  pid_t child = fork();
  if (child == 0) {
    _exit(pthread_mutex_trylock(&log_lock));  // a lock() would wait for ever
  }
  waitpid(child, &status, 0);
  pthread_join(t, 0);
  return status != 0;
}
