// SPDX-License-Identifier: MIT
// The first thread that needs the library to look for a signal to the process has a kernel thread of its own, with properties that no other
// may inherit. It gets the signal all the same.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void* waits(void* set) {
  assert(prctl(PR_SET_TIMERSLACK, 40000) == 0);
  pid_t process = getpid(), child = fork();
  if (!child) _exit(kill(process, SIGUSR1) != 0);
  int sig, status;
  assert(sigwait(set, &sig) == 0);
  assert(waitpid(child, &status, 0) == child && status == 0);
  printf("got %s\n", sig == SIGUSR1 ? "SIGUSR1" : "another");
  return NULL;
}

int main(void) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t t;
  pthread_create(&t, NULL, waits, &set);
  pthread_join(t, NULL);
}
