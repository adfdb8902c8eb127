// SPDX-License-Identifier: MIT
// Waits that last until another thread, a child or a signal ends them.
#pragma once
#include "differential.h"

enum {
  kPoint = 1,       // a cancellation point
  kBreaks = 2,      // any handler ends it with EINTR
  kRestart = 4,     // a handler without SA_RESTART ends it with EINTR
  kNoEnd = 8,       // only a signal ends it
  kJump = 16,       // a handler may jump out of it
  kChild = 32,      // a child can end it
  kSafe = 64,       // a handler can end it
  kHasChild = 128,  // a child ends
  kOwned = 256,     // the thread that ends it must be the one that has prepared it
};

// What a wait needs. It lies in memory that a child shares.
struct place {
  bool shared;  // objects are process-shared
  sem_t sem, end;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  pthread_rwlock_t rwlock;
  pthread_barrier_t barrier;
  pthread_once_t once;
  mtx_t c11;
  cnd_t c11_cond;
  atomic_int flag;
  int fds[2];
  int extra;
  pid_t child;
  pthread_t other;
  pthread_t waiter;
  struct thread* owner;
};

struct wait {
  const char* name;
  int flags;
  void (*open)(struct place*);
  int (*enter)(struct place*);    // returns an error number
  void (*finish)(struct place*);  // before the wait, too
  void (*close)(struct place*);
};
extern const struct wait waits[];
