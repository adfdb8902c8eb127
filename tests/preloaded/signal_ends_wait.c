// SPDX-License-Identifier: MIT
// A signal for the process comes just when main, which has to take it, goes to sleep. Its handler ends that wait all the same. Another
// process sends it at all points of the way to sleep.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum kind { SEM, JOIN, SUSPEND, POLL, kKinds };
enum { kRounds = 5000, kOfSem = 40000, kAll = kOfSem + 3 * kRounds };
static const char* const names[] = {"semaphore", "join", "sigsuspend", "ppoll"};

static sem_t sem;
static atomic_int handled;

static void handler(int sig) {
  handled++;
  sem_post(&sem);
}
static void* wait_for_handler(void* p) {
  while (sem_wait(&sem) != 0) assert(errno == EINTR);
  return p;
}

int main(void) {
  atomic_int* turn = mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(turn != MAP_FAILED && sem_init(&sem, 0, 0) == 0);
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler}, NULL);
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    unsigned seed = 1;
    for (int i = 1; i <= kAll; i++) {
      while (atomic_load(turn) != i)
        if (getppid() != parent) _exit(1);
      seed = seed * 1103515245 + 12345;
      for (unsigned n = (seed >> 16) % 2048; n--;) atomic_signal_fence(memory_order_seq_cst);
      kill(parent, SIGUSR1);
    }
    _exit(0);
  }
  sigset_t usr1, before;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  int i = 0;
  for (enum kind kind = 0; kind < kKinds; kind++) {
    int ended = 0;
    for (int round = 0; round < (kind == SEM ? kOfSem : kRounds); round++, ended++) {
      int done = handled;
      struct timespec late = {time(NULL) + 30, 0}, most = {30, 0};
      pthread_t t;
      pthread_sigmask(SIG_BLOCK, &usr1, &before);
      if (kind == JOIN) assert(pthread_create(&t, NULL, wait_for_handler, NULL) == 0);
      if (kind == SEM || kind == JOIN) pthread_sigmask(SIG_SETMASK, &before, NULL);
      atomic_store(turn, ++i);
      switch (kind) {
        case SEM:
          while (sem_timedwait(&sem, &late) != 0) assert(errno == EINTR);  // not ETIMEDOUT
          break;
        case JOIN: assert(pthread_timedjoin_np(t, NULL, &late) == 0); break;
        case SUSPEND: assert(sigsuspend(&before) == -1 && errno == EINTR && handled == done + 1); break;
        default: assert(ppoll(NULL, 0, &most, &before) == -1 && errno == EINTR && handled == done + 1);
      }
      pthread_sigmask(SIG_SETMASK, &before, NULL);
      assert(handled == done + 1);
      if (kind > JOIN) assert(sem_trywait(&sem) == 0);
    }
    printf("%s: %d ended\n", names[kind], ended);
  }
  int status;
  while (waitpid(child, &status, 0) < 0) assert(errno == EINTR);
  printf("child: %d\n", status);
  return 0;
}
