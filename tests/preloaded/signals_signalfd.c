// SPDX-License-Identifier: MIT
// A program has a signalfd. Signals that it blocks and that other threads send to its threads still end their sigwait(), with or without
// kernel threads of their own.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static sigset_t set;
static atomic_int seen;

static void* waits(void* own) {
  if (own) setfsuid(getuid());  // changes this kernel thread alone
  for (;;) {
    int signal;
    sigwait(&set, &signal);
    atomic_fetch_add(&seen, 1);
  }
  return own;
}

static void* sends(void* p) {
  for (int i = 1; i <= 20; i++) {
    pthread_kill(*(pthread_t*)p, SIGUSR1);
    for (int k = 0; k < 20000 && atomic_load(&seen) < i; k++) usleep(1000);  // the limit only finds hangs
    if (atomic_load(&seen) < i) {
      printf("%d was lost\n", i);
      return NULL;
    }
  }
  printf("20 seen\n");
  return NULL;
}

int main(void) {
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
  if (signalfd(-1, &set, SFD_NONBLOCK) < 0) return 1;
  for (long own = 0; own < 2; own++)
    for (int by_main = 0; by_main < 2; by_main++) {
      pthread_t waiter, sender;
      atomic_store(&seen, 0);
      pthread_create(&waiter, NULL, waits, (void*)own);
      usleep(20000);
      if (by_main) {
        sends(&waiter);
      } else {
        pthread_create(&sender, NULL, sends, &waiter);
        pthread_join(sender, NULL);
      }
    }
  _exit(fflush(stdout));
}
