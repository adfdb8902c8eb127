// SPDX-License-Identifier: MIT
// syscall() answers as the kernel does if the caller is wrong. Calls about one thread act on that thread only.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAILS(error, ...) assert((errno = 0, syscall(__VA_ARGS__)) == -1 && errno == (error))

static char* missing;  // no memory there
static const struct timespec soon = {0, 1000000};

static void futexes(void) {
  int word = 0, other = 0;
  int* nowhere = (int*)missing;
  FAILS(EFAULT, SYS_futex, nowhere, FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0);
  FAILS(EFAULT, SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, nowhere, NULL, 0);
  FAILS(EFAULT, SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, nowhere, NULL, -1);
  FAILS(EFAULT, SYS_futex, NULL, FUTEX_WAIT_PRIVATE, 0, &soon, NULL, 0);
  FAILS(EFAULT, SYS_futex, nowhere, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1L, &word, 0);
  FAILS(EINVAL, SYS_futex, &word, FUTEX_CMP_REQUEUE_PRIVATE, -1, 1L, &other, 0);
  FAILS(EINVAL, SYS_futex, &word, FUTEX_CMP_REQUEUE_PRIVATE, 1, -1L, &other, 0);
  FAILS(EINVAL, SYS_futex, &word, FUTEX_REQUEUE_PRIVATE, 1, 1L, (char*)&other + 1, 0);
  FAILS(EAGAIN, SYS_futex, &word, FUTEX_CMP_REQUEUE_PRIVATE, 1, 1L, &other, 7);
  FAILS(ENOSYS, SYS_futex, &word, FUTEX_WAIT_PRIVATE | FUTEX_CLOCK_REALTIME, 0, &soon, NULL, 0);
  FAILS(ENOSYS, SYS_futex, &word, 0x7f | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0);
  assert(syscall(SYS_futex, nowhere, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 0);
  // Many times, since nothing may stay locked after a fault.
  for (int i = 0; i < 1000; i++) FAILS(EFAULT, SYS_futex, missing + 4 * (i % 16), FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void sleeping(void) {
  struct timespec bad = {0, -1};
  FAILS(EFAULT, SYS_nanosleep, missing, NULL);
  FAILS(EINVAL, SYS_nanosleep, &bad, NULL);
  FAILS(EFAULT, SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, missing, NULL);
  FAILS(EINVAL, SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &bad, NULL);
  assert(syscall(SYS_clock_nanosleep, CLOCK_REALTIME, 0, &soon, NULL) == 0);
}

static volatile int handled;
static void on_signal(int sig) { handled++; }

static void signals(void) {
  uint64_t set = 1 << (SIGUSR2 - 1), old;
  FAILS(EFAULT, SYS_rt_sigprocmask, SIG_BLOCK, missing, NULL, 8);
  FAILS(EINVAL, SYS_rt_sigprocmask, 99, &set, NULL, 8);
  FAILS(EINVAL, SYS_rt_sigprocmask, SIG_BLOCK, &set, NULL, 16);
  assert(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &set, NULL, 8) == 0);
  sigset_t now;
  assert(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, SIGUSR2));
  assert(syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &set, &old, 8) == 0 && old & set);

  struct sigaction a = {.sa_handler = on_signal}, before;
  sigaddset(&a.sa_mask, SIGUSR2);
  assert(sigaction(SIGUSR1, &a, NULL) == 0);
  // The kernel's form of an action: handler, flags, restorer, mask.
  uint64_t kernel[4] = {0};
  assert(syscall(SYS_rt_sigaction, SIGUSR1, NULL, kernel, 8) == 0);
  assert(kernel[0] != 0);
  FAILS(EINVAL, SYS_rt_sigaction, SIGKILL, kernel, NULL, 8);
  FAILS(EINVAL, SYS_rt_sigaction, SIGUSR1, NULL, kernel, 4);
  FAILS(EFAULT, SYS_rt_sigaction, SIGUSR1, missing, NULL, 8);
  FAILS(EFAULT, SYS_rt_sigaction, SIGUSR1, NULL, missing, 8);
  kernel[0] = (uintptr_t)SIG_IGN;
  assert(syscall(SYS_rt_sigaction, SIGUSR1, kernel, NULL, 8) == 0);
  assert(sigaction(SIGUSR1, NULL, &before) == 0 && before.sa_handler == SIG_IGN);
  assert(raise(SIGUSR1) == 0 && handled == 0);
  assert(sigaction(SIGUSR1, &a, NULL) == 0);
  handled = 0;
  assert(syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), SIGUSR1) == 0 && handled == 1);
  handled = 0;
  FAILS(EFAULT, SYS_rt_tgsigqueueinfo, getpid(), (int)syscall(SYS_gettid), SIGUSR1, NULL);
  FAILS(EINVAL, SYS_tgkill, getpid(), (int)syscall(SYS_gettid), 99);
  FAILS(ESRCH, SYS_tgkill, 1, (int)syscall(SYS_gettid), 0);
  FAILS(EINVAL, SYS_tgkill, -1, -1, 0);
  FAILS(EINVAL, SYS_tkill, -1, 0);
  assert(handled == 0);
}

static void scheduling(void) {
  struct sched_param p = {0}, *volatile none = NULL;  // volatile, since the header says that it must not be null
  FAILS(EINVAL, SYS_sched_setscheduler, 0, SCHED_OTHER, NULL);
  FAILS(EINVAL, SYS_sched_setparam, 0, NULL);
  FAILS(EINVAL, SYS_sched_getparam, 0, NULL);
  FAILS(EFAULT, SYS_sched_setaffinity, 0, 128, NULL);
  FAILS(EINVAL, SYS_sched_setscheduler, 0, 6 /* SCHED_DEADLINE */, &p);
  assert(pthread_setschedparam(pthread_self(), SCHED_OTHER, none) == EINVAL);
  assert(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &p) == 0);
  assert(sched_getscheduler(0) == (SCHED_BATCH | SCHED_RESET_ON_FORK));
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t rest[4];
  } a = {48};
  int tid = (int)syscall(SYS_gettid);
  assert(syscall(SYS_sched_getattr, tid, &a, 48, 0) == 0 && a.policy == SCHED_BATCH && a.flags == 1);
  a.policy = SCHED_OTHER;
  a.flags = 0;
  a.nice = 19;
  assert(syscall(SYS_sched_setattr, tid, &a, 0) == 0);
  assert(sched_getscheduler(0) == SCHED_OTHER && getpriority(PRIO_PROCESS, 0) == 19);
  FAILS(EINVAL, SYS_sched_setattr, 0, NULL, 0);
  FAILS(ESRCH, SYS_sched_setattr, 999999999, &a, 0);
}

static void identity(void) {
  int word = 0;
  void* head;
  size_t size;
  int tid = (int)syscall(SYS_gettid);
  // NPTL's join would wait for the word that it has named.
  if (tid == getpid()) assert(syscall(SYS_set_tid_address, &word) == tid);
  FAILS(EINVAL, SYS_set_robust_list, &word, 23);
  assert(syscall(SYS_set_robust_list, &word, 24) == 0);
  assert(syscall(SYS_get_robust_list, 0, &head, &size) == 0 && head == &word && size == 24);
  FAILS(EFAULT, SYS_get_robust_list, 0, NULL, NULL);
  assert(syscall(SYS_set_robust_list, NULL, 24) == 0);
  char name[16] = "";
  assert(syscall(SYS_prctl, PR_SET_NAME, "by syscall") == 0);
  assert(pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strcmp(name, "by syscall") == 0);
}

// The word that the kernel clears when the calling thread ends is the thread's own. Null: the kernel does not tell.
static void* word_to_clear(void* p) {
  int* word = NULL;
  if (prctl(PR_GET_TID_ADDRESS, &word) != 0) return NULL;
  assert(word);
  return word;
}
static void words_to_clear(void) {
  void *own = word_to_clear(NULL), *again = NULL, *of_other;
  if (!own) return;
  pthread_t other;
  assert(pthread_create(&other, NULL, word_to_clear, NULL) == 0 && pthread_join(other, &of_other) == 0 && of_other != own);
  assert(syscall(SYS_set_tid_address, own) == gettid());
  assert(syscall(SYS_prctl, PR_GET_TID_ADDRESS, &again) == 0 && again == own);
}

static void* on_thread(void* p) {
  words_to_clear();  // before it is bound by its own policy
  futexes();
  sleeping();
  signals();
  scheduling();
  identity();
  return p;
}
static void* nothing(void* p) { return p; }

static volatile int asked;
static void* asleep(void* p) {
  *(volatile int*)p = 1;
  struct timespec t = {0, 20000000};
  long r;
  for (int before = 0; !before;) {  // the last sleep begins with the request pending
    before = asked;
    r = syscall(SYS_nanosleep, &t, NULL);  // no cancellation point
  }
  *(volatile int*)p = 2 + (r != 0);
  pthread_testcancel();
  *(volatile int*)p = 4;
  return NULL;
}

int main() {
  missing = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(missing != MAP_FAILED);
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
  for (int i = 0; i < 2; i++) {
    // Runs in processes of their own, since the cases leave things behind.
    pid_t child = fork();
    if (child == 0) {
      pthread_create(&t, NULL, i ? on_thread : nothing, NULL);
      pthread_join(t, NULL);
      if (!i) on_thread(NULL);
      _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child);
    printf("on %s: %#x\n", i ? "a thread" : "main", status);
  }
  volatile int step = 0;
  pthread_create(&t, NULL, asleep, (void*)&step);
  while (!step) sched_yield();
  pthread_cancel(t);
  asked = 1;
  void* result;
  pthread_join(t, &result);
  printf("cancelled %d, after the sleep %d\n", result == PTHREAD_CANCELED, step == 2 || step == 3);
  return 0;
}
