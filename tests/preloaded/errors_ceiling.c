// SPDX-License-Identifier: MIT
// Mutexes with a ceiling. Locking raises the caller's priority, and fails for callers above the ceiling.
#include "errors.h"

#include <sys/wait.h>

#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)
static void ceilings(const char* who) {
  static const int some[] = {1, 50, 99};
  EACH(i, some) for (int type = 0; type < 4; type++) {
    pthread_mutexattr_t a;
    pthread_mutex_t m;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, type);
    pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_PROTECT);
    pthread_mutexattr_setprioceiling(&a, some[i]);
    pthread_mutex_init(&m, &a);
    const char* s = format("%s, ceiling %d, type %d", who, some[i], type);
    for (int k = 0; k < 3; k++) {
      int e = k == 0   ? CASE(s, pthread_mutex_lock, &m)
              : k == 1 ? CASE(s, pthread_mutex_trylock, &m)
                       : CASE(s, pthread_mutex_timedlock, &m, &past);
      int old = 77;
      struct sched_param p;
      if (e) continue;
      sched_getparam(0, &p);
      printf("priority %d\n", p.sched_priority);
      if (type == PTHREAD_MUTEX_ERRORCHECK) CASE(format("%s, mine", s), pthread_mutex_setprioceiling, &m, some[i], &old);
      CASE(s, pthread_mutex_unlock, &m);
      sched_getparam(0, &p);
      printf("priority %d\n", p.sched_priority);
      CASE(s, pthread_mutex_setprioceiling, &m, some[i], &old);
      printf("ceiling %d\n", old);
    }
    pthread_mutex_destroy(&m);
  }
}

// Runs the cases in processes of their own, since they leave things behind.
static void cases(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    ceilings("policy 0");
    struct sched_param low = {10};
    if (CASE("10", pthread_setschedparam, pthread_self(), SCHED_FIFO, &low) == 0) ceilings("FIFO 10");
    fflush(stdout);
    _exit(0);
  }
  int status;
  assert(waitpid(child, &status, 0) == child);
  printf("status %d\n", status);
}
