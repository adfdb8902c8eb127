// SPDX-License-Identifier: MIT
// A signal's handler takes a lock that the interrupted code may hold.
#include <pthread.h>
#include <signal.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int seen;
static void handler(int sig) {
#ifndef MENDED
  pthread_mutex_lock(&lock);
#endif
  seen = sig;
#ifndef MENDED
  pthread_mutex_unlock(&lock);
#endif
}
static void* works(void* p) {
  for (int i = 0; i < 2; i++) {
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
  }
  return p;
}
int main() {
  pthread_t t;
  signal(SIGUSR1, handler);
  pthread_create(&t, 0, works, 0);
  pthread_kill(t, SIGUSR1);
  pthread_join(t, 0);
  signal(SIGUSR1, SIG_IGN);
}
