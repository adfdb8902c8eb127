// SPDX-License-Identifier: MIT
// A call that asks without waiting fails with EINTR only if a handler has run on its thread. Signals that other threads take come just
// then.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 3, kSignals = 20000 };
static atomic_bool over;
static _Thread_local volatile sig_atomic_t handled;

static void handler(int sig) { handled = handled + 1; }

static void look(const char* call, int result, int before) {
  if (result == 0 || (result == -1 && errno == EINTR && handled != before)) return;
  fprintf(stderr, "%s: %d, errno %d, no handler\n", call, result, errno);
  abort();
}

static void* ask(void* p) {
  sigset_t set;
  sigemptyset(&set);
  while (!over) {
    struct timeval none = {0, 0};
    struct timespec nothing = {0, 0};
    int before = handled;
    look("poll", poll(NULL, 0, 0), before);
    before = handled;
    look("ppoll", ppoll(NULL, 0, &nothing, &set), before);
    before = handled;
    look("select", select(0, NULL, NULL, NULL, &none), before);
    before = handled;
    look("pselect", pselect(0, NULL, NULL, NULL, &nothing, &set), before);
  }
  return p;
}

int main(void) {
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler}, NULL);
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < kSignals && getppid() == parent; i++) {
      kill(parent, SIGUSR1);
      for (int n = 0; n < 3000; n++) atomic_signal_fence(memory_order_seq_cst);
    }
    _exit(0);
  }
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, ask, NULL) == 0);
  int status;
  while (waitpid(child, &status, 0) < 0) assert(errno == EINTR);
  over = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("child: %d, %s\n", status, handled > 0 ? "main handled some" : "no signal");
  return 0;
}
