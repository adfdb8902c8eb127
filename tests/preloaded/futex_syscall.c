// SPDX-License-Identifier: MIT
// syscall(): futexes as Rust and libstdc++ use them, tids, and calls that concern one thread only.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long futex(atomic_int* word, int op, int value, const void* t, void* word2, int value3) {
  return syscall(SYS_futex, word, op, value, t, word2, value3);
}

// A lock as Rust's std has it: 0 free, 1 locked, 2 contended.
static atomic_int lock_word;
static void lock(void) {
  int zero = 0;
  if (atomic_compare_exchange_strong(&lock_word, &zero, 1)) return;
  while (atomic_exchange(&lock_word, 2) != 0) futex(&lock_word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}
static void unlock(void) {
  if (atomic_exchange(&lock_word, 0) == 2) futex(&lock_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
static long counter;
static void* load(void* p) {
  for (int i = 0; i < 3000; i++) {
    lock();
    long c = counter;
    if (i % 64 == 0) sched_yield();
    counter = c + 1;
    unlock();
  }
  return p;
}

static atomic_int gate;
static atomic_int waiting;
static void* wait_bits(void* p) {
  waiting++;
  while (gate == 0) {
    long r = futex(&gate, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, NULL, (int)(long)p);
    assert(r == 0 || errno == EAGAIN);
    if (r == 0) break;
  }
  return p;
}
static void* wait_plain(void* p) {
  atomic_int* word = p;
  while (*word == 0) futex(word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  return NULL;
}

static void* identity(void* p) {
  pid_t tid = gettid();
  assert(tid > 0 && tid != getpid() && syscall(SYS_gettid) == tid);
  assert(syscall(SYS_tgkill, getpid(), tid, 0) == 0 && tgkill(getpid(), tid, 0) == 0 && syscall(SYS_tkill, tid, 0) == 0);
  assert(syscall(SYS_tgkill, getpid(), 999999999, 0) == -1 && errno == ESRCH);
  return p;
}
static int exited;
static void never(void* p) { exited = p != NULL; }
static void* raw_exit(void* p) {
  pthread_cleanup_push(never, p);
  syscall(SYS_exit, 0);
  pthread_cleanup_pop(1);
  return p;
}
static atomic_int handled;
static void on_signal(int sig) { handled += sig == SIGUSR1; }

int main() {
  pthread_t t[16];
  for (int i = 0; i < 16; i++) pthread_create(&t[i], NULL, load, NULL);
  for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
  printf("%ld\n", counter);

  struct timespec past = {0, 0}, soon = {0, 2000000}, bad = {0, -1}, at;
  atomic_int word = 5;
  assert(futex(&word, FUTEX_WAIT_PRIVATE, 4, NULL, NULL, 0) == -1 && errno == EAGAIN);
  assert(futex(&word, FUTEX_WAIT_PRIVATE, 5, &soon, NULL, 0) == -1 && errno == ETIMEDOUT);
  assert(futex(&word, FUTEX_WAIT_PRIVATE, 5, &bad, NULL, 0) == -1 && errno == EINVAL);
  assert(futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 5, &past, NULL, -1) == -1 && errno == ETIMEDOUT);
  assert(futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 5, &past, NULL, 0) == -1 && errno == EINVAL);
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_nsec += 2000000;
  if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
  assert(futex(&word, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 5, &at, NULL, -1) == -1 && errno == ETIMEDOUT);
  assert(futex((atomic_int*)((char*)&word + 1), FUTEX_WAIT_PRIVATE, 5, NULL, NULL, 0) == -1 && errno == EINVAL);
  assert(futex(&word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) == 0);

  for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, wait_bits, (void*)(i < 2 ? 1L : 2L));
  while (waiting < 4) sched_yield();
  long woken = 0;
  while (woken < 2) woken += futex(&gate, FUTEX_WAKE_BITSET_PRIVATE, 100, NULL, NULL, 2);
  printf("bit set: woken %ld\n", woken);
  gate = 1;
  futex(&gate, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);

  atomic_int from = 0, to = 0;
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, wait_plain, &from);
  from = 1;
  assert(futex(&from, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void*)100L, &to, 2) == -1 && errno == EAGAIN);
  futex(&from, FUTEX_CMP_REQUEUE_PRIVATE, 1, (void*)100L, &to, 1);
  futex(&to, FUTEX_WAKE_PRIVATE, 100, NULL, NULL, 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);

  // Between processes.
  atomic_int* shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child = fork();
  if (child == 0) {
    while (*shared == 0) futex(shared, FUTEX_WAIT, 0, NULL, NULL, 0);
    _exit(0);
  }
  *shared = 1;
  futex(shared, FUTEX_WAKE, 1, NULL, NULL, 0);
  assert(waitpid(child, NULL, 0) == child);

  assert(gettid() == getpid());
  pthread_create(&t[0], NULL, identity, NULL);
  pthread_join(t[0], NULL);
  pthread_create(&t[0], NULL, raw_exit, &word);
  pthread_join(t[0], NULL);
  signal(SIGUSR1, on_signal);
  assert(syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1) == 0 && syscall(SYS_kill, getpid(), SIGUSR1) == 0);
  printf("cleanup after SYS_exit %d, handled %d\n", exited, handled);
  assert(syscall(SYS_sched_yield) == 0 && syscall(SYS_nanosleep, &soon, NULL) == 0);
  assert(syscall(-1L) == -1 && errno == ENOSYS);
  return 0;
}
