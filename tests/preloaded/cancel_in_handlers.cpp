// SPDX-License-Identifier: MIT
// Cancellation of threads that are in a signal handler, which has interrupted a system call of libc's own or a wait for a condition.
// libs: -lrt
#include "cancel_calls.h"

namespace {

// A handler may come at any instruction from a stage on, and before 2.41 cancellation too where the handler has interrupted a call of
// libc's. C++ ends the process if it unwinds through a function with cleanups from an instruction that is no call. So a function with
// cleanups sets the stage and waits in one without.
std::atomic<int> in_handler, go_on;
[[gnu::noinline]] void wait_for_child(std::atomic<int>& reached) {
  reached = 1;
  waitpid(child, nullptr, 0);
}
void waits_too(int) {
  pthread_cleanup_push(cleanup, nullptr);
  wait_for_child(in_handler);
  pthread_cleanup_pop(0);
}
void computes(int) {
  in_handler = 1;
  while (!go_on) {
  }
}
void computes_and_opens(int) {
  computes(0);
  close(open("/dev/null", O_RDONLY));
}
pthread_mutex_t mutex;
pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
std::atomic<int> unlocked;
void unlock(void*) { unlocked = pthread_mutex_unlock(&mutex); }
[[gnu::noinline]] void wait_for_cond() {
  stage = 1;
  for (;;) pthread_cond_wait(&cond, &mutex);
}
void* in_cond_wait(void*) {
  pthread_mutex_lock(&mutex);
  pthread_cleanup_push(unlock, nullptr);
  wait_for_cond();
  pthread_cleanup_pop(0);
  return nullptr;
}

void handle(int sig, void (*handler)(int)) {
  struct sigaction a = {};
  a.sa_flags = SA_RESTART;
  a.sa_handler = handler;
  sigaction(sig, &a, nullptr);
}

void* in_waitpid(void*) {
  Guard g;
  pthread_cleanup_push(cleanup, nullptr);
  wait_for_child(stage);
  pthread_cleanup_pop(0);
  return nullptr;
}
pthread_t start_in_waitpid(int round) {
  pthread_t t;
  stage = in_handler = go_on = 0;
  pthread_create(&t, nullptr, in_waitpid, nullptr);
  wait_for_stage(1);
  if (round % 2) usleep(1000);
  return t;
}

void in_a_handler_that_waits() {
  int ended = 0;
  cleaned = destroyed = 0;
  handle(SIGUSR1, waits_too);
  for (int i = 0; i < 50; i++) {
    pthread_t t = start_in_waitpid(i);
    pthread_kill(t, SIGUSR1);
    while (!in_handler) sched_yield();
    if (i % 4) pass_time();
    else usleep(1000);
    pthread_cancel(t);
    ended += result_of(t) == PTHREAD_CANCELED;
  }
  printf("in a handler that waits: %d, %d cleaned, %d destroyed\n", ended, cleaned.load(), destroyed.load());
}

// From 2.41 on, libc itself forgets a request that comes while the handler computes, and the call goes on for ever. So libc's own threads
// get no signal here.
void in_a_handler_that_computes() {
  int ended = 0;
  bool alone = !getenv("LD_PRELOAD") && !loses_results();
  cleaned = destroyed = 0;
  handle(SIGUSR2, computes);
  for (int i = 0; i < 50; i++) {
    pthread_t t = start_in_waitpid(i);
    if (!alone) {
      pthread_kill(t, SIGUSR2);
      while (!in_handler) sched_yield();
    }
    pthread_cancel(t);
    go_on = 1;
    ended += result_of(t) == PTHREAD_CANCELED;
  }
  printf("in a handler that computes: %d, %d cleaned, %d destroyed\n", ended, cleaned.load(), destroyed.load());
}

// `opens`: the handler computes and then opens a file. Otherwise it waits.
void over_a_condition_variable(bool opens) {
  int wrong = 0, ended = 0;
  handle(SIGUSR1, waits_too);
  handle(SIGUSR2, computes_and_opens);
  for (int i = 0; i < 50; i++) {
    pthread_t t;
    stage = in_handler = go_on = 0;
    unlocked = -1;
    pthread_create(&t, nullptr, in_cond_wait, nullptr);
    wait_for_stage(1);
    usleep(1000);
    pthread_kill(t, opens ? SIGUSR2 : SIGUSR1);
    while (!in_handler) sched_yield();
    if (!opens) usleep(1000);
    pthread_cancel(t);
    go_on = 1;
    ended += result_of(t) == PTHREAD_CANCELED;
    wrong += unlocked != 0;
  }
  pthread_cond_broadcast(&cond);
  printf("in a handler over a condition variable that %s: %d, %d without the mutex\n", opens ? "opens" : "waits", ended, wrong);
}

}  // namespace

int main(int argc, char** argv) {
  begin(argc, argv);
  pthread_mutexattr_t checked;
  pthread_mutexattr_init(&checked);
  pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&mutex, &checked);
  in_a_handler_that_waits();
  in_a_handler_that_computes();
  over_a_condition_variable(false);
  over_a_condition_variable(true);
  end();
}
