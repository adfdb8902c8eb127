// SPDX-License-Identifier: MIT
// A thread sleeps in the kernel until another process wakes it. That process has sent a signal to ours before, which only this thread lets
// in. So the handler runs before the thread goes on.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kProcesses = 10, kRounds = 20 };

static struct {
  sem_t asleep, go;
}* shared;
static volatile sig_atomic_t handled;

static void handler(int sig) { (void)sig, handled++; }

static void* sleeps(void* unused) {
  (void)unused;
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN);
  assert(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
  int late = 0;
  for (int i = 1; i <= kRounds; i++) {
    sem_post(&shared->asleep);
    while (sem_wait(&shared->go) != 0) continue;
    late += handled != i;
    while (handled != i) sched_yield();
  }
  if (late) printf("%d of %d handlers ran after the wait\n", late, kRounds);
  return NULL;
}

static void process(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  sem_init(&shared->asleep, 1, 0), sem_init(&shared->go, 1, 0);
  struct sigaction a = {.sa_handler = handler};
  sigaction(SIGRTMIN, &a, NULL);
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pid_t sender = fork();
  if (!sender) {
    for (int i = 0; i < kRounds; i++) {
      sem_wait(&shared->asleep);
      usleep(1000);  // so that the thread sleeps; if it does not yet, this round tests less
      if (kill(getppid(), SIGRTMIN) != 0) _exit(1);
      sem_post(&shared->go);
    }
    _exit(0);
  }
  pthread_t t;
  pthread_create(&t, NULL, sleeps, NULL);
  pthread_join(t, NULL);
  int status;
  assert(waitpid(sender, &status, 0) == sender && status == 0);
}

int main(void) {
  // The first signal of a process showed the defect most often.
  for (int i = 0; i < kProcesses; i++) {
    pid_t child = fork();
    if (!child) {
      process();
      return 0;
    }
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
  }
  puts("each handler ran before its wait returned");
}
