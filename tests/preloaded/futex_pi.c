// SPDX-License-Identifier: MIT
// FUTEX_LOCK_PI and its kin by syscall(), as a program's own lock uses them. The lock excludes, each call gives the right answer, and
// owners die.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static int kLockPi2 = 13;  // FUTEX_LOCK_PI where the kernel has none (before Linux 5.14)
static atomic_uint word;
static long futex(int op, const struct timespec* t) {
  return syscall(SYS_futex, &word, op | FUTEX_PRIVATE_FLAG, 0, t, NULL, 0) == -1 ? errno : 0;
}
static int lock(void) {
  unsigned free_word = 0;
  return atomic_compare_exchange_strong(&word, &free_word, (unsigned)gettid()) ? 0 : futex(FUTEX_LOCK_PI, NULL);
}
static int unlock(void) {
  unsigned mine = gettid();
  return atomic_compare_exchange_strong(&word, &mine, 0) ? 0 : futex(FUTEX_UNLOCK_PI, NULL);
}
static void show(const char* what, int e) { printf("%s: %s\n", what, e ? strerrorname_np(e) : "0"); }

static long counter;
static atomic_int inside;
static void* count(void* p) {
  for (int i = 0; i < 1500; i++) {
    struct timespec t;
    int e;
    if (i % 10 == 3) {  // the lock is given up now and then
      clock_gettime(CLOCK_REALTIME, &t);
      while ((e = futex(FUTEX_LOCK_PI, &t)) == ETIMEDOUT)
        if ((t.tv_nsec += 50000) >= 1000000000) t.tv_nsec = 0, t.tv_sec++;
    } else if (i % 10 == 7) {
      while ((e = futex(FUTEX_TRYLOCK_PI, NULL)) == EAGAIN) sched_yield();
    } else {
      e = lock();
    }
    if (e) show("count", e);
    assert(e == 0 && ++inside == 1);
    long was = counter;
    if (i % 40 == 0) usleep(50);
    else if (i % 16 == 0) sched_yield();
    counter = was + 1;
    assert(--inside == 0 && unlock() == 0);
  }
  return p;
}

static void* from_another(void* p) {
  struct timespec past = {1, 0}, soon, bad = {0, 1000000000};
  show("trylock, another's", futex(FUTEX_TRYLOCK_PI, NULL));
  show("lock, passed", futex(FUTEX_LOCK_PI, &past));
  show("lock, tv_nsec 1e9", futex(FUTEX_LOCK_PI, &bad));
  clock_gettime(kLockPi2 == FUTEX_LOCK_PI ? CLOCK_REALTIME : CLOCK_MONOTONIC, &soon);
  if ((soon.tv_nsec += 3000000) >= 1000000000) soon.tv_nsec -= 1000000000, soon.tv_sec++;
  show("lock, soon", futex(kLockPi2, &soon));
  show("unlock, another's", futex(FUTEX_UNLOCK_PI, NULL));
  return p;
}
static void* says_tid(void* p) {
  *(unsigned*)p = gettid();
  return p;
}

// A robust list in the kernel's form, with one entry.
static struct {
  struct robust_list_head head;
  struct robust_list entry;
} list;
static atomic_int has_it;
static void* dies(void* p) {
  list.head.list.next = (void*)((char*)&list.entry + 1);  // the lowest bit: with inheritance
  list.head.futex_offset = (char*)&word - (char*)&list.entry;
  list.entry.next = &list.head.list;
  syscall(SYS_set_robust_list, &list.head, sizeof list.head);
  assert(lock() == 0);
  has_it = 1;
  while (!(word & FUTEX_WAITERS)) sched_yield();
  usleep(3000);
  return p;
}

// The thread's robust list does not have the word.
static void* ends(void* p) {
  lock();
  has_it = 2;
  nanosleep(&(struct timespec){0, 30000000}, NULL);
  return p;
}

// Words that cannot be written, or are not mapped.
static unsigned* page;
static void answers(const char* what, unsigned value) {
  static const char* const names[] = {"lock", "trylock", "lock2", "unlock"};
  const int calls[] = {FUTEX_LOCK_PI, FUTEX_TRYLOCK_PI, kLockPi2, FUTEX_UNLOCK_PI};
  for (int protection = 0; protection < 3; protection++)
    for (int i = 0; i < 4; i++) {
      mprotect(page, 4096, PROT_READ | PROT_WRITE);
      *page = value;
      mprotect(page, 4096, protection == 0 ? PROT_NONE : protection == 1 ? PROT_READ : PROT_READ | PROT_WRITE);
      struct timespec past = {1, 0};
      int e = syscall(SYS_futex, page, calls[i] | FUTEX_PRIVATE_FLAG, 0, &past, NULL, 0) == -1 ? errno : 0;
      printf("%s, %s, %s: %s", what, protection == 0 ? "none" : protection == 1 ? "read" : "write", names[i], e ? strerrorname_np(e) : "0");
      if (protection)
        printf(", waiters %d, died %d, mine %d, free %d", *page >> 31, *page >> 30 & 1, (*page & FUTEX_TID_MASK) == (unsigned)gettid(),
               !(*page & FUTEX_TID_MASK));
      printf("\n");
    }
}
static unsigned main_tid, gone_tid;
static void* bad_words(void* p) {
  page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  answers("free", 0);
  answers("died", FUTEX_OWNER_DIED);
  answers("mine", gettid());
  answers("mine, waiters", gettid() | FUTEX_WAITERS);
  answers("main's", main_tid);
  answers("main's, waiters", main_tid | FUTEX_WAITERS);
  answers("of who has ended", gone_tid);
  munmap(page, 4096);
  page = (unsigned*)4096;  // never mapped. Where `page` was, another thread may have memory by now.
  for (int i = 0; i < 4; i++) {
    const int calls[] = {FUTEX_LOCK_PI, FUTEX_TRYLOCK_PI, kLockPi2, FUTEX_UNLOCK_PI};
    show("not mapped", syscall(SYS_futex, page, calls[i] | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) == -1 ? errno : 0);
  }
  return p;
}

// A lock becomes read-only while a thread waits for it. Its owner can release it later.
static void* waits_for_page(void* p) {
  long e = syscall(SYS_futex, page, FUTEX_LOCK_PI_PRIVATE, 0, NULL, NULL, 0) == -1 ? errno : 0;
  *page = 0;
  return (void*)e;
}
static void* becomes_read_only(void* p) {
  page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_t t;
  *page = gettid();
  pthread_create(&t, NULL, waits_for_page, NULL);
  while (!(*(volatile unsigned*)page & FUTEX_WAITERS)) sched_yield();
  usleep(3000);
  mprotect(page, 4096, PROT_READ);
  show("unlock, read-only", syscall(SYS_futex, page, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == -1 ? errno : 0);
  mprotect(page, 4096, PROT_READ | PROT_WRITE);
  show("unlock", syscall(SYS_futex, page, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0) == -1 ? errno : 0);
  void* waited;
  pthread_join(t, &waited);
  show("waited", (long)waited);
  return p;
}

// The thread's robust list has a word that cannot be written. The list ends there.
static void* dies_read_only(void* p) {
  struct {
    struct robust_list_head head;
    struct robust_list entry;
    unsigned word;
  }* l = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  l->head.list.next = &l->entry;
  l->head.futex_offset = (char*)&l->word - (char*)&l->entry;
  l->entry.next = &l->head.list;
  l->word = gettid();
  page = &l->word;
  syscall(SYS_set_robust_list, &l->head, sizeof l->head);
  mprotect(l, 8192, PROT_READ);
  return p;
}

int main() {
  pthread_t t[8];
  struct utsname u;
  int major = 0, minor = 0;
  if (uname(&u) == 0 && sscanf(u.release, "%d.%d", &major, &minor) == 2 && major * 1000 + minor < 5014) kLockPi2 = FUTEX_LOCK_PI;
  show("free", lock());
  pthread_create(&t[0], NULL, from_another, NULL);
  pthread_join(t[0], NULL);
  show("lock, mine", futex(FUTEX_LOCK_PI, NULL));
  show("trylock, mine", futex(FUTEX_TRYLOCK_PI, NULL));
  show("unlock, mine", futex(FUTEX_UNLOCK_PI, NULL));
  show("unlock, free", futex(FUTEX_UNLOCK_PI, NULL));
  show("trylock, free", futex(FUTEX_TRYLOCK_PI, NULL));
  printf("mine %d\n", (pid_t)word == gettid());
  show("unlock", unlock());
  unsigned gone = 0;
  pthread_create(&t[0], NULL, says_tid, &gone);
  pthread_join(t[0], NULL);
  word = gone;
  main_tid = gettid(), gone_tid = gone;
  void* (*on_pages[])(void*) = {bad_words, becomes_read_only, dies_read_only};
  for (int i = 0; i < 3; i++) pthread_create(&t[0], NULL, on_pages[i], NULL), pthread_join(t[0], NULL);
  printf("died read-only %d\n", *page >> 30);
  show("lock, of who has ended", futex(FUTEX_LOCK_PI, NULL));
  word = 0;

  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, count, NULL);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  printf("counted %ld, free %d\n", counter, (word & FUTEX_TID_MASK) == 0);

  word = 0;
  pthread_create(&t[0], NULL, dies, NULL);
  while (!has_it) sched_yield();
  show("lock, its owner dies", futex(FUTEX_LOCK_PI, NULL));
  printf("died %d, mine %d\n", (word & FUTEX_OWNER_DIED) != 0, (pid_t)(word & FUTEX_TID_MASK) == gettid());
  pthread_join(t[0], NULL);
  show("unlock", futex(FUTEX_UNLOCK_PI, NULL));

  word = 0;
  pthread_create(&t[0], NULL, ends, NULL);
  while (has_it != 2) sched_yield();
  show("lock, its owner ends", futex(FUTEX_LOCK_PI, NULL));
  printf("died %d, mine %d\n", (word & FUTEX_OWNER_DIED) != 0, (pid_t)(word & FUTEX_TID_MASK) == gettid());
  pthread_join(t[0], NULL);
  show("unlock", futex(FUTEX_UNLOCK_PI, NULL));
  return 0;
}
