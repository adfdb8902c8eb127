// SPDX-License-Identifier: MIT
// A signal whose action is the default one ends the process while its threads are parked.
#include "signals_parked.h"

// The main thread blocks SIGUSR1, a parked thread has it unblocked.
static void parked_with_usr1(int by_itself) {
  pthread_t t;
  mask(SIG_BLOCK, SIGUSR1);
  pthread_create(&t, NULL, parked, NULL);
  settle();
  if (by_itself) kill(getpid(), SIGUSR1);
  else
    for (;;) pause();
  pthread_join(t, NULL);
}
// SIGABRT is blocked and has a handler, which returns.
static void aborts(void) {
  pthread_t t;
  mask(SIG_BLOCK, SIGABRT);
  handle(SIGABRT, 0);
  pthread_create(&t, NULL, (void* (*)(void*))abort, NULL);
  pthread_join(t, NULL);
}

enum { kByItself, kByAnother, kAborts, kHows };
static void ended_by_a_signal(int how) {
  fflush(stdout);
  pid_t p = fork();
  if (p == 0) {
    signal(SIGUSR1, SIG_DFL);
    mask(SIG_UNBLOCK, SIGABRT);
    if (how == kAborts) aborts();
    parked_with_usr1(how == kByItself);
    _exit(1);
  }
  if (how == kByAnother) {
    usleep(30000);
    kill(p, SIGUSR1);
  }
  int status;
  waitpid(p, &status, 0);
  printf("ended by %d\n", WTERMSIG(status));
}

int main() {
  begin();
  for (int how = 0; how < kHows; how++) ended_by_a_signal(how);
  return 0;
}
