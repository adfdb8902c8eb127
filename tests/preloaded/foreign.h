// SPDX-License-Identifier: MIT
// What the programs about libc's helper threads share.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static sem_t done;
static pthread_key_t key;
static atomic_int destroyed;

static void destructor(void* p) { destroyed += p == (void*)1000; }  // helpers of earlier cases may still end

static void wait_all(int n) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += 30;
  // The start of the scheduler sets the process's ids to what they are already. libc interrupts its threads for that.
  for (int i = 0; i < n; i++)
    if (sem_timedwait(&done, &t) != 0 && (errno != EINTR || sem_timedwait(&done, &t) != 0)) printf("HANGS: %s\n", strerror(errno));
}
