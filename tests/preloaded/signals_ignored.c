// SPDX-License-Identifier: MIT
// A pending signal is dropped when its action becomes "ignore", blocked or not, however it was sent. The same holds for signals that are
// ignored by default.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static void handle(int sig) {
  (void)sig;
  handled++;
}

static void* nothing(void* p) { return p; }

static void try(int sig, void (*to)(int), const char* how, void (*send)(int)) {
  sigset_t set, pending;
  sigemptyset(&set);
  sigaddset(&set, sig);
  handled = 0;
  signal(sig, handle);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  send(sig);
  sigpending(&pending);
  printf("%d by %s: pending %d", sig, how, sigismember(&pending, sig));
  signal(sig, to);
  signal(sig, handle);
  sigpending(&pending);
  printf(", then %d", sigismember(&pending, sig));
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  printf(", handled %d\n", (int)handled);
}

static void by_raise(int sig) { raise(sig); }
static void by_kill(int sig) { kill(getpid(), sig); }
static void by_pthread_kill(int sig) { pthread_kill(pthread_self(), sig); }

static void* all(void* p) {
  struct {
    const char* name;
    void (*send)(int);
  } ways[] = {{"raise", by_raise}, {"pthread_kill", by_pthread_kill}, {"kill", by_kill}};
  for (int i = 0; i < (p ? 2 : 3); i++) {  // another thread has the process's signals unblocked
    try(SIGUSR1, SIG_IGN, ways[i].name, ways[i].send);
    try(SIGCHLD, SIG_DFL, ways[i].name, ways[i].send);
    try(SIGRTMIN + 1, SIG_IGN, ways[i].name, ways[i].send);
  }
  return p;
}

int main(void) {
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
  all(NULL);
  int yes = 1;
  pthread_create(&t, NULL, all, &yes);
  pthread_join(t, NULL);
  return 0;
}
