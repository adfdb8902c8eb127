// SPDX-License-Identifier: MIT
// Another process sends signals to main's thread by tgkill(). Main takes them in each kind of wait, and no other thread does.
// (Not under the emulator, which has threads of its own.)
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_t main_thread;
static sem_t came, ping, pong;
static atomic_int by_main, by_others, stop, while_blocked;
static volatile sig_atomic_t blocked;
static int answer[2];

static void on_signal(int sig) {
  if (sig == SIGRTMAX) {  // of main_changes_its_mask()
    if (!pthread_equal(pthread_self(), main_thread)) by_others++;
    if (blocked) while_blocked++;
    by_main++;
    assert(write(answer[1], "", 1) == 1);
    return;
  }
  if (pthread_equal(pthread_self(), main_thread)) by_main++;
  else by_others++;
  sem_post(&came);
}
static sigset_t usr1(void) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1);
  return set;
}
static void change(int how) {
  sigset_t set = usr1();
  pthread_sigmask(how, &set, NULL);
}
static sigset_t without_usr1(void) {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  sigdelset(&set, SIGUSR1);
  return set;
}

// Sends the signal from a child, after main has probably begun to wait. No case depends on that.
static void child_sends(int after_ms) {
  pid_t process = getpid();
  pid_t thread = gettid();
  pid_t child = fork();
  assert(child >= 0);
  if (child) return;
  struct timespec t = {0, after_ms * 1000000L};
  nanosleep(&t, NULL);
  _exit(syscall(SYS_tgkill, process, thread, SIGUSR1) != 0);
}
static void child_has_sent(const char* what) {
  int status;
  while (wait(&status) < 0) assert(errno == EINTR);
  assert(status == 0);
  printf("%s: main %d, others %d\n", what, by_main, by_others);
  by_main = by_others = 0;
  while (sem_trywait(&came) == 0) {
  }
}

static void all_waits(int after_ms) {
  child_sends(after_ms);
  while (sem_wait(&came) < 0) assert(errno == EINTR);
  child_has_sent("sem_wait");

  change(SIG_BLOCK);
  sigset_t open = without_usr1(), set = usr1();
  child_sends(after_ms);
  assert(sigsuspend(&open) == -1 && errno == EINTR);
  child_has_sent("sigsuspend");

  child_sends(after_ms);
  int sig;
  assert(sigwait(&set, &sig) == 0 && sig == SIGUSR1);
  child_has_sent("sigwait");

  child_sends(after_ms);
  siginfo_t info;
  struct timespec long_enough = {60, 0};
  assert(sigtimedwait(&set, &info, &long_enough) == SIGUSR1 && info.si_pid != getpid());
  child_has_sent("sigtimedwait");

  child_sends(after_ms);
  assert(ppoll(NULL, 0, NULL, &open) == -1 && errno == EINTR);
  child_has_sent("ppoll");

  child_sends(after_ms);
  assert(pselect(0, NULL, NULL, NULL, NULL, &open) == -1 && errno == EINTR);
  child_has_sent("pselect");

  child_sends(0);
  child_has_sent("blocked");
  change(SIG_UNBLOCK);
  while (sem_wait(&came) < 0) assert(errno == EINTR);
  printf("unblocked: main %d, others %d\n", by_main, by_others);
  by_main = 0;
}

// The child sends a signal, waits until main has taken it, and so on. Main never takes one while it blocks it. (A real-time signal, because the
// kernel drops a signal of another kind while the library's own of that number is on its way.)
static void main_changes_its_mask(void) {
  enum { kSignals = 100 };
  assert(pipe(answer) == 0);
  pid_t process = getpid(), thread = gettid(), child = fork();
  if (!child) {
    char c;
    for (int i = 0; i < kSignals; i++)
      if (syscall(SYS_tgkill, process, thread, SIGRTMAX) != 0 || read(answer[0], &c, 1) != 1) _exit(1);
    _exit(0);
  }
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMAX);
  while (by_main < kSignals) {
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    blocked = 1;
    sem_post(&ping);
    while (sem_wait(&pong) < 0) {
    }
    blocked = 0;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    sem_post(&ping);
    while (sem_wait(&pong) < 0) {
    }
  }
  child_has_sent("changes of mask");
  printf("while blocked: %d\n", while_blocked);
}

// A signal that main has just blocked does not end the process, and stays pending. All other threads block it.
static void main_blocks_a_deadly_signal(void) {
  sigset_t set;
  struct timespec at_once = {0, 0};
  sigemptyset(&set), sigaddset(&set, SIGRTMIN);
  int taken = 0;
  for (int i = 0; i < 300; i++) {
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    for (int k = 0; k < i % 7; k++) {  // main goes from kernel thread to kernel thread
      sem_post(&ping);
      while (sem_wait(&pong) < 0) {
      }
    }
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGRTMIN);
    taken += sigtimedwait(&set, NULL, &at_once) == SIGRTMIN;
  }
  printf("deadly signals kept: %d\n", taken);
}

static void* answers(void* unused) {
  (void)unused;
  while (!stop) {
    while (sem_wait(&ping) < 0) {
    }
    sem_post(&pong);
  }
  return NULL;
}
static void* parks(void* s) {
  while (sem_wait(s) < 0) {
  }
  return NULL;
}
static void* spins(void* unused) {
  (void)unused;
  while (!stop) {
  }
  return NULL;
}

int main(void) {
  main_thread = pthread_self();
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &a, NULL), sigaction(SIGRTMAX, &a, NULL);
  pthread_t t[3];
  sem_t s;
  sem_init(&s, 0, 0), sem_init(&came, 0, 0), sem_init(&ping, 0, 0), sem_init(&pong, 0, 0);
  for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, parks, &s);
  printf("beside threads that wait\n");
  all_waits(0), all_waits(5);
  for (int i = 0; i < 3; i++) sem_post(&s);
  for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);

  printf("beside threads that run\n");
  for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, spins, NULL);
  child_sends(5);
  while (sem_wait(&came) < 0) assert(errno == EINTR);
  child_has_sent("sem_wait");
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);

  printf("beside a thread that answers\n");
  stop = 0;
  sigset_t deadly;
  sigemptyset(&deadly), sigaddset(&deadly, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &deadly, NULL);
  pthread_create(&t[0], NULL, answers, NULL);
  main_changes_its_mask();
  main_blocks_a_deadly_signal();
  stop = 1;
  sem_post(&ping);
  pthread_join(t[0], NULL);
}
