// SPDX-License-Identifier: MIT
// A signal whose default action ends the process comes from another process at any time. Main blocks it and lets it in again, and says when it
// may be sent: only while main blocks it. Then it is pending, and ignored for a moment, which drops it. No thread of the library
// may let the signal in because main did a moment ago.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRounds = 2000 };
static struct {
  int allowed, sent;  // the last round whose signal may be sent, and was
}* shared;

static void* waits(void* p) {
  assert(sem_wait(p) == 0);
  return p;
}

static void send_all(pid_t to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int round = 1; round <= kRounds; round++) {
    while (__atomic_load_n(&shared->allowed, __ATOMIC_ACQUIRE) < round) {
    }
    kill(to, SIGUSR2);
    __atomic_store_n(&shared->sent, round, __ATOMIC_RELEASE);
  }
  _exit(0);
}

int main(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(shared != MAP_FAILED);
  pid_t me = getpid(), sender = fork();
  if (sender == 0) send_all(me);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  // The others never let it in.
  assert(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
  sem_t end;
  pthread_t t;
  assert(sem_init(&end, 0, 0) == 0 && pthread_create(&t, NULL, waits, &end) == 0);
  assert(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
  unsigned random = 1;
  for (int round = 1; round <= kRounds; round++) {
    assert(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    __atomic_store_n(&shared->allowed, round, __ATOMIC_RELEASE);
    while (__atomic_load_n(&shared->sent, __ATOMIC_ACQUIRE) < round) {
    }
    sigset_t pending;
    assert(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR2));
    assert(signal(SIGUSR2, SIG_IGN) != SIG_ERR && signal(SIGUSR2, SIG_DFL) != SIG_ERR);  // drops it
    assert(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    random = random * 1103515245 + 12345;
    // Long enough for another kernel thread to let the signal in, or not, or just now.
    for (volatile unsigned i = random >> (random >> 16 & 1 ? 12 : 20); i; i--) {
    }
  }
  assert(sem_post(&end) == 0 && pthread_join(t, NULL) == 0);
  assert(waitpid(sender, NULL, 0) == sender);
  return 0;
}
