// SPDX-License-Identifier: MIT
// A call fails with EINTR only if a handler has run on its thread. Signals for the process, which any thread may take, and signals for the
// thread come all the time, while it looks at descriptors and during short waits. (epoll_wait and receives with a
// timeout differ: the kernel ends them even if another thread takes the signal.)
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 3, kSignals = 15000, kNsPerSec = 1000000000 };
static atomic_bool over;
static _Thread_local volatile sig_atomic_t handled;

static void handler(int sig) { handled = handled + 1; }

static void look(const char* call, int result, int before) {
  if (result >= 0 || errno == ETIMEDOUT || errno == EAGAIN || (errno == EINTR && handled != before)) return;
  fprintf(stderr, "%s: errno %d, no handler\n", call, errno);
  abort();
}
#define LOOK(call, ...) \
  do { \
    int before = handled; \
    look(#call, call(__VA_ARGS__), before); \
  } while (0)

static struct timespec deadline(const struct timespec* wait) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += wait->tv_nsec;
  if (t.tv_nsec >= kNsPerSec) t.tv_sec++, t.tv_nsec -= kNsPerSec;
  return t;
}

static void* ask(void* p) {
  sigset_t none;
  sigemptyset(&none);
  sem_t sem;
  sem_init(&sem, 0, 0);
  int ends[2], word = 0;
  assert(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  struct pollfd end = {ends[0], POLLIN, 0};
  while (!over) {
    const struct timespec nothing = {0, 0}, wait = {0, 50000};
    struct timeval no_time = {0, 0};
    LOOK(poll, NULL, 0, 0);
    LOOK(ppoll, NULL, 0, &nothing, &none);
    LOOK(select, 0, NULL, NULL, NULL, &no_time);
    LOOK(pselect, 0, NULL, NULL, NULL, &nothing, &none);
    LOOK(nanosleep, &wait, NULL);
    struct timespec until = deadline(&wait);
    LOOK(sem_timedwait, &sem, &until);
    LOOK((int)syscall, SYS_futex, &word, FUTEX_WAIT, 0, &wait, NULL, 0);
    LOOK(ppoll, &end, 1, &wait, &none);
    LOOK(poll, &end, 1, 1);
  }
  return p;
}

int main(void) {
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler}, NULL);
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = handler, .sa_flags = SA_RESTART}, NULL);
  pid_t parent = getpid(), child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < kSignals && getppid() == parent; i++) {
      kill(parent, i % 4 ? SIGUSR1 : SIGUSR2);
      for (int n = 0; n < 3000; n++) atomic_signal_fence(memory_order_seq_cst);
    }
    _exit(0);
  }
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, ask, NULL) == 0);
  int status;
  for (int i = 0; waitpid(child, &status, WNOHANG) != child; i++) {
    pthread_kill(t[i % kThreads], i % 5 ? SIGUSR2 : SIGUSR1);
    nanosleep(&(struct timespec){0, 20000}, NULL);
  }
  over = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("child: %d\n", status);
  return 0;
}
