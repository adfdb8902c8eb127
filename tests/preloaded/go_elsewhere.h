// SPDX-License-Identifier: MIT
// Lets a thread go on at another place, if threads can: after a yield, a sleep, a wait for a mutex, or a preemption.
#pragma once
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static inline void go_elsewhere(long i) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  switch (i % 4) {
    case 0: sched_yield(); break;
    case 1: usleep(200); break;
    case 2:
      pthread_mutex_lock(&mutex);
      sched_yield();
      pthread_mutex_unlock(&mutex);
      break;
    default:
      for (volatile int k = 0; k < 300000; k++) {
      }
  }
}
