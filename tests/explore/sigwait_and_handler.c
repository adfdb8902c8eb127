// SPDX-License-Identifier: MIT
// Signals: main waits for a signal by sigwait(), but has blocked it only after it has made the threads. These inherit the mask as it was, and one
// of them gets the signal.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static void* reloads(void* p) {
  usleep(50000);
  kill(getpid(), SIGHUP);
  return p;
}
int main() {
  pthread_t t;
  sigset_t set;
  int got;
  sigemptyset(&set);
  sigaddset(&set, SIGHUP);
#ifdef MENDED
  pthread_sigmask(SIG_BLOCK, &set, 0);
#endif
  pthread_create(&t, 0, reloads, 0);
#ifndef MENDED
  sigset_t also_others = set;
  sigaddset(&also_others, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &also_others, 0);
#endif
  sigwait(&set, &got);
  pthread_join(t, 0);
}
