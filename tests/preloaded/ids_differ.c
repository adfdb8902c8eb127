// SPDX-License-Identifier: MIT
// A thread that has changed its own ids cannot follow the process to other ids. setuid() aborts the process then, and a handler of SIGABRT
// runs.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t changed, over;
static void on_abort(int sig) {
  (void)sig;
  static const char text[] = "aborted\n";
  write(1, text, sizeof text - 1);
  _exit(3);
}
static void* changes_its_own(void* p) {
  if (syscall(SYS_setresuid, 1, 1, 1) != 0) printf("cannot change ids\n");
  pthread_barrier_wait(&changed);
  pthread_barrier_wait(&over);
  return p;
}
static void child(int handles) {
  pthread_t t;
  if (handles) signal(SIGABRT, on_abort);
  pthread_barrier_init(&changed, NULL, 2), pthread_barrier_init(&over, NULL, 2);
  pthread_create(&t, NULL, changes_its_own, NULL);
  pthread_barrier_wait(&changed);
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (freopen("/dev/null", "w", stderr) && setuid(2) == 0) printf("changed\n");
  pthread_barrier_wait(&over);
  pthread_join(t, NULL);
}

int main() {
  if (geteuid() != 0) return printf("needs root\n"), 0;
  for (int handles = 0; handles < 2; handles++) {
    pid_t pid = fork();
    if (pid == 0) {
      child(handles);
      exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) printf("ended by %s\n", sigabbrev_np(WTERMSIG(status)));
    else printf("status %d\n", WEXITSTATUS(status));
  }
  return 0;
}
