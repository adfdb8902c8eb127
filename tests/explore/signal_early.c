// SPDX-License-Identifier: MIT
// Signals: a thread is asked to stop by a signal for which it has no handler yet, so the signal ends the process.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t stop;
static void handler(int sig) { stop = sig; }
static void* works(void* p) {
#ifndef MENDED
  signal(SIGUSR1, handler);
#endif
  while (!stop) usleep(100);
  return p;
}
int main() {
  pthread_t t;
#ifdef MENDED
  signal(SIGUSR1, handler);
#endif
  pthread_create(&t, 0, works, 0);
  usleep(50000);
  pthread_kill(t, SIGUSR1);
  pthread_join(t, 0);
}
