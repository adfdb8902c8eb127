// SPDX-License-Identifier: MIT
// Signals that are pending for main before there is a second thread stay with main. Any thread can take those that are pending for the
// process. (Not under an emulator, which keeps pending signals itself: the library learns from a text of the kernel's whose they are.)
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static int pending(int sig) {
  sigset_t set;
  assert(sigpending(&set) == 0);
  return sigismember(&set, sig);
}
static void change(int how, int sig) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, sig);
  pthread_sigmask(how, &set, NULL);
}

static void* takes(void* name) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGRTMIN);
  printf("%s sees %d %d", (char*)name, pending(SIGUSR1), pending(SIGRTMIN));
  siginfo_t info;
  struct timespec at_once = {0, 0};
  for (int sig; (sig = sigtimedwait(&set, &info, &at_once)) > 0;)
    printf(", gets %s %d", sig == SIGUSR1 ? "SIGUSR1" : "SIGRTMIN", sig == SIGRTMIN ? info.si_value.sival_int : 0);
  printf("\n");
  return NULL;
}
int main() {
  pthread_t t;
  change(SIG_BLOCK, SIGUSR1), change(SIG_BLOCK, SIGRTMIN);
  raise(SIGUSR1);
  for (int i = 0; i < 3; i++) pthread_sigqueue(pthread_self(), SIGRTMIN, (union sigval){.sival_int = i});
  sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 7});
  pthread_create(&t, NULL, takes, "the first thread");
  pthread_join(t, NULL);
  takes("main");
  change(SIG_UNBLOCK, SIGUSR1), change(SIG_UNBLOCK, SIGRTMIN);
  return 0;
}
