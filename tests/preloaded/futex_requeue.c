// SPDX-License-Identifier: MIT
// Calls by syscall() that concern two futexes, and the calls of Linux 6.7: who wakes, who is moved and sleeps on, and how a wait ends that
// was moved.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 40, kFutexWake = 454, kFutexWait = 455, kFutexRequeue = 456, kWordOfProcess = 0x82 };

static atomic_uint from, to;

static long futex(atomic_uint* word, int op, unsigned value, long fourth, atomic_uint* word2, unsigned value3) {
  long r = syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, fourth, word2, value3);
  return r == -1 ? -errno : r;
}
// The same for a wait that the library does not see.
static long kernel_wait(atomic_uint* word) {
  long r;
#if defined(__x86_64__)
  register long r10 __asm__("r10") = 0;
  __asm__ volatile("syscall" : "=a"(r) : "0"(SYS_futex), "D"(word), "S"(FUTEX_WAIT_PRIVATE), "d"(0), "r"(r10) : "rcx", "r11", "memory");
#else
  register long x8 __asm__("x8") = SYS_futex, x0 __asm__("x0") = (long)word, x1 __asm__("x1") = FUTEX_WAIT_PRIVATE, x2 __asm__("x2") = 0,
                   x3 __asm__("x3") = 0;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  r = x0;
#endif
  return r;
}
static void show(const char* what, long r) {
  if (r < 0) printf("%s: %s\n", what, strerrorname_np((int)-r));
  else printf("%s: %ld\n", what, r);
}

// ---- waiters, whose number in the queue is known ----

static struct waiter {
  pthread_t thread;
  atomic_bool ended;
  long result;
  enum { Plain, Timed, Pi, PiTimed, Numbered, Unseen } kind;
} all[kThreads];
static atomic_int ended;

static void* wait_here(void* p) {
  struct waiter* w = p;
  struct timespec half_second = {0, 500000000}, at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  if ((at.tv_nsec += 30000000) >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
  switch (w->kind) {
    case Plain: w->result = futex(&from, FUTEX_WAIT, 0, 0, NULL, 0); break;
    case Timed: w->result = futex(&from, FUTEX_WAIT, 0, (long)&half_second, NULL, 0); break;
    case Pi: w->result = futex(&from, FUTEX_WAIT_REQUEUE_PI, 0, 0, &to, 0); break;
    case PiTimed: w->result = futex(&from, FUTEX_WAIT_REQUEUE_PI, 0, (long)&at, &to, 0); break;
    case Unseen: w->result = kernel_wait(&from); break;
    case Numbered: w->result = syscall(kFutexWait, &from, 0L, 0xffffffffL, kWordOfProcess, NULL, CLOCK_MONOTONIC) == -1 ? -errno : 0; break;
  }
  // With the lock that it has got.
  if (w->result == 0 && (w->kind == Pi || w->kind == PiTimed)) {
    assert((to & FUTEX_TID_MASK) == (unsigned)gettid());
    unsigned mine = (unsigned)gettid();
    if (!atomic_compare_exchange_strong(&to, &mine, 0)) assert(futex(&to, FUTEX_UNLOCK_PI, 0, 0, NULL, 0) == 0);
  }
  w->ended = true;
  ended++;
  return NULL;
}

// Requeueing to the word itself counts those that wait, and changes nothing.
static long waiting_at(atomic_uint* word) { return futex(word, FUTEX_REQUEUE, 0, kThreads, word, 0); }

static void start(int first, int n, int kind) {
  for (int i = first; i < first + n; i++) {
    bool pi = kind == Pi || kind == PiTimed;
    long before = pi ? 0 : waiting_at(&from);
    all[i] = (struct waiter){.kind = kind};
    pthread_create(&all[i].thread, NULL, wait_here, &all[i]);
    while (!pi && waiting_at(&from) == before) sched_yield();
  }
}
static void until_ended(int n) {
  while (ended < n) usleep(500);
}
// Says which of them have ended, once n have.
static void show_ended(const char* what, int n, int of) {
  until_ended(n);
  usleep(3000);  // no other follows
  printf("%s:", what);
  for (int i = 0; i < of; i++)
    if (all[i].ended) printf(" %d", i);
  printf("\n");
}
static void join(int n) {
  for (int i = 0; i < n; i++) {
    pthread_join(all[i].thread, NULL);
    if (all[i].result) printf("%d: %s\n", i, strerrorname_np((int)-all[i].result));
  }
  ended = 0;
  from = to = 0;
}

static void requeue(void) {
  start(0, 6, Plain);
  show("another value", futex(&from, FUTEX_CMP_REQUEUE, 1, 100, &to, 5));
  show("negative", futex(&from, FUTEX_REQUEUE, (unsigned)-1, 100, &to, 0));
  show("not aligned", futex(&from, FUTEX_REQUEUE, 1, 100, (atomic_uint*)((char*)&to + 1), 0));
  show("wake 1, move 2", futex(&from, FUTEX_CMP_REQUEUE, 1, 2, &to, 0));
  show_ended("ended", 1, 6);
  show("at the first word", waiting_at(&from));
  show("at the second word", waiting_at(&to));
  show("move all", futex(&from, FUTEX_REQUEUE, 0, 0x7fffffff, &to, 0));
  show("wake at the first word", futex(&from, FUTEX_WAKE, 100, 0, NULL, 0));
  show_ended("still ended", 1, 6);
  show("wake 2", futex(&to, FUTEX_WAKE, 2, 0, NULL, 0));
  show_ended("the oldest", 3, 6);
  show("wake with a bit", futex(&to, FUTEX_WAKE_BITSET, 1, 0, NULL, 8));
  show("wake all", futex(&to, FUTEX_WAKE, 100, 0, NULL, 0));
  show("nobody", futex(&from, FUTEX_REQUEUE, 1, 100, &to, 0));
  join(6);
}

// Waits in the kernel by an instruction of the program's own. Their order among the others is not told.
static void unseen(void) {
  start(0, 2, Plain);
  start(2, 2, Unseen);
  show("count", waiting_at(&from));
  show("move three", futex(&from, FUTEX_CMP_REQUEUE, 0, 3, &to, 0));
  show("move all", futex(&from, FUTEX_CMP_REQUEUE, 0, 100, &to, 0));
  show("nobody", waiting_at(&from));
  show("wake three", futex(&to, FUTEX_WAKE, 3, 0, NULL, 0));
  show("wake and move the last", futex(&to, FUTEX_CMP_REQUEUE, 2, 100, &from, 0));
  join(4);
  start(0, 1, Unseen);
  start(1, 1, Plain);
  show("wake one, move one", futex(&from, FUTEX_REQUEUE, 1, 5, &to, 0));
  show("wake the other", futex(&to, FUTEX_WAKE, 5, 0, NULL, 0));
  join(2);
}

static atomic_int handled;
static void on_signal(int sig) { handled += sig == SIGUSR1 || sig == SIGUSR2; }

// A wait that was moved ends at its deadline and by a handler, as before. A handler with SA_RESTART sends it back to its own word.
static void ends(void) {
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
  sigaction(SIGUSR2, &(struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART}, NULL);
  start(0, 3, Plain);
  start(3, 2, Timed);
  show("move all", futex(&from, FUTEX_CMP_REQUEUE, 0, 100, &to, 0));
  show_ended("by deadlines", 2, 5);
  pthread_kill(all[1].thread, SIGUSR1);
  show_ended("by a signal", 3, 5);
  pthread_kill(all[0].thread, SIGUSR2);
  while (waiting_at(&from) != 1) sched_yield();
  printf("handled %d\n", handled);
  show("at the second word", futex(&to, FUTEX_WAKE, 100, 0, NULL, 0));
  show("at the first word", futex(&from, FUTEX_WAKE, 100, 0, NULL, 0));
  join(5);
}

// ---- each wake-up reaches one waiter ----

static atomic_int left;
static atomic_long got;
static void* wait_often(void* p) {
  struct timespec soon = {0, 200000};
  for (int i = 0; i < 400; i++) {
    bool timed = i % 3 == 0;
    long r = futex(i % 2 ? &from : &to, FUTEX_WAIT, 0, timed ? (long)&soon : 0, NULL, 0);
    assert(r == 0 || (timed && r == -ETIMEDOUT));
    got += r == 0;
  }
  left--;
  return p;
}
static void* wake_often(void* p) {
  long sent = 0;
  for (unsigned i = 0; left > 0; i++) {
    bool back = i % 3 == 0;
    atomic_uint *a = back ? &to : &from, *b = back ? &from : &to;
    if (i % 4 == 0) sent += futex(a, FUTEX_WAKE, 1 + i % 2, 0, NULL, 0);
    else futex(a, FUTEX_CMP_REQUEUE, 0, 1 + i % 5, b, 0);
    if (i % 8 == 0) sched_yield();
  }
  *(long*)p = sent;
  return NULL;
}
static void counts(void) {
  enum { kWaiters = 12, kWakers = 2 };
  pthread_t t[kWaiters + kWakers];
  long sent[kWakers];
  left = kWaiters;
  for (int i = 0; i < kWaiters; i++) pthread_create(&t[i], NULL, wait_often, NULL);
  for (int i = 0; i < kWakers; i++) pthread_create(&t[kWaiters + i], NULL, wake_often, &sent[i]);
  for (int i = 0; i < kWaiters + kWakers; i++) pthread_join(t[i], NULL);
  printf("each wake-up arrived: %s\n", sent[0] + sent[1] == got ? "yes" : "no");
  if (sent[0] + sent[1] != got) fprintf(stderr, "%ld sent, %ld arrived\n", sent[0] + sent[1], (long)got);
}

// ---- FUTEX_WAKE_OP ----

static void wake_op(void) {
  static const char* const kOps[] = {"set", "add", "or", "andn", "xor", "none"};
  for (int op = 0; op < 6; op++)
    for (int shift = 0; shift < 2; shift++)
      for (int argument = -2; argument < 70; argument += 9) {
        atomic_uint word = 0x1234;
        long r = futex(&from, FUTEX_WAKE_OP, 1, 1, &word, FUTEX_OP(op | (shift ? FUTEX_OP_OPARG_SHIFT : 0), argument, 0, 0));
        printf("%s%s %d: %ld %x\n", kOps[op], shift ? " shifted" : "", argument, r, word);
      }
  static const int kOld[] = {-5, 0, 5, 0x7fffffff};
  for (int compare = 0; compare < 7; compare++)
    for (unsigned i = 0; i < 4; i++)
      for (int with = -5; with < 6; with += 5) {
        start(0, 1, Plain);
        // The second word is the one that is waited for, so the result says whether it was woken.
        from = 0;
        atomic_uint nobody = 0;
        from = (unsigned)kOld[i];
        long r = futex(&nobody, FUTEX_WAKE_OP, 1, 1, &from, FUTEX_OP(FUTEX_OP_OR, 0, compare, with));
        printf("%d %s %d: %ld\n", kOld[i], (const char*[]){"==", "!=", "<", "<=", ">", ">=", "?"}[compare], with, r);
        if (r != 1) assert(futex(&from, FUTEX_WAKE, 1, 0, NULL, 0) == 1);
        join(1);
      }
  start(0, 4, Plain);
  show("one of the first, two of the second", futex(&from, FUTEX_WAKE_OP, 1, 2, &from, FUTEX_OP(FUTEX_OP_SET, 1, FUTEX_OP_CMP_EQ, 0)));
  show("the last", futex(&from, FUTEX_WAKE, 100, 0, NULL, 0));
  show("no memory", futex(&from, FUTEX_WAKE_OP, 1, 1, (atomic_uint*)8, 0));
  join(4);
}

// ---- waits that end with a lock ----

static void with_lock(void) {
  show("another value", futex(&from, FUTEX_WAIT_REQUEUE_PI, 1, 0, &to, 0));
  show("one word", futex(&from, FUTEX_WAIT_REQUEUE_PI, 0, 0, &from, 0));
  show("wakes two", futex(&from, FUTEX_CMP_REQUEUE_PI, 2, 0, &to, 0));
  show("nobody", futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 100, &to, 0));
  start(0, 1, PiTimed);
  show_ended("by its deadline", 1, 1);
  join(1);

  start(0, 1, Plain);
  show("one that wants no lock", futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 0, &to, 0));
  show("wake it", futex(&from, FUTEX_WAKE, 1, 0, NULL, 0));
  join(1);

  enum { kWaiters = 4 };
  start(0, kWaiters, Pi);
  long r;
  while ((r = futex(&from, FUTEX_WAKE, 1, 0, NULL, 0)) == 0) sched_yield();
  show("wake", r);
  show("move as others", futex(&from, FUTEX_CMP_REQUEUE, 1, 1, &to, 0));
  atomic_uint other = 0;
  show("move to another lock", futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 1, &other, 0));
  show("another value", futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 1, &to, 1));
  show("free lock", futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 0, &to, 0));
  until_ended(1);
  unsigned expected = 0;
  if (!atomic_compare_exchange_strong(&to, &expected, (unsigned)gettid())) assert(futex(&to, FUTEX_LOCK_PI, 0, 0, NULL, 0) == 0);
  for (int moved = 0; moved < kWaiters - 1; moved += (int)r) assert((r = futex(&from, FUTEX_CMP_REQUEUE_PI, 1, 100, &to, 0)) >= 0);
  usleep(3000);
  printf("while we hold the lock, %d have had it\n", ended);
  expected = (unsigned)gettid();
  if (!atomic_compare_exchange_strong(&to, &expected, 0)) assert(futex(&to, FUTEX_UNLOCK_PI, 0, 0, NULL, 0) == 0);
  join(kWaiters);
}

// ---- calls of Linux 6.7 ----

struct futex_of_list {
  uint64_t value, word;
  uint32_t flags, reserved;
};
static long of_kernel(long r) { return r == -1 ? -errno : r; }

static void numbered(void) {
  long there = of_kernel(syscall(kFutexWake, &from, 1L, 0, kWordOfProcess));
  if (there == -ENOSYS) return;
  show("not aligned", of_kernel(syscall(kFutexWake, (char*)&from + 1, 1L, 1, kWordOfProcess)));
  show("no bits", of_kernel(syscall(kFutexWait, &from, 0L, 0L, kWordOfProcess, NULL, 0)));
  show("a wide value", of_kernel(syscall(kFutexWait, &from, 1L << 32, 1L, kWordOfProcess, NULL, 0)));
  show("unknown flags", of_kernel(syscall(kFutexWait, &from, 0L, 1L, 0x1082, NULL, 0)));
  show("another value", of_kernel(syscall(kFutexWait, &from, 1L, 1L, kWordOfProcess, NULL, 0)));
  struct timespec past = {0, 1};
  show("in the past", of_kernel(syscall(kFutexWait, &from, 0L, 1L, kWordOfProcess, &past, CLOCK_MONOTONIC)));
  show("a clock of none", of_kernel(syscall(kFutexWait, &from, 0L, 1L, kWordOfProcess, &past, CLOCK_BOOTTIME)));

  start(0, 3, Numbered);
  start(3, 3, Plain);
  struct futex_of_list two[2] = {{0, (uintptr_t)&from, kWordOfProcess, 0}, {0, (uintptr_t)&to, kWordOfProcess, 0}};
  two[0].value = 7;
  show("requeue, another value", of_kernel(syscall(kFutexRequeue, two, 0, 1, 1)));
  two[0].value = 0;
  show("requeue, flags", of_kernel(syscall(kFutexRequeue, two, 1, 1, 1)));
  show("requeue", of_kernel(syscall(kFutexRequeue, two, 0, 1, 2)));
  show_ended("ended", 1, 6);
  show("wake by the old call", futex(&from, FUTEX_WAKE, 1, 0, NULL, 0));
  show_ended("ended", 2, 6);
  show("wake none", of_kernel(syscall(kFutexWake, &from, 0xffffffffL, 0, kWordOfProcess)));
  show("wake by the new call", of_kernel(syscall(kFutexWake, &from, 0xffffffffL, 100, kWordOfProcess)));
  show("wake the others", of_kernel(syscall(kFutexWake, &to, 0xffffffffL, 100, kWordOfProcess)));
  join(6);
}

int main() {
  requeue();
  unseen();
  ends();
  counts();
  wake_op();
  with_lock();
  numbered();
  return 0;
}
