// SPDX-License-Identifier: MIT
// RUSAGE_THREAD counts the faults and switches of the calling thread alone, wherever it runs. The counts never fall.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kPages = 3000, kRounds = 300, kThreads = 8 };

static struct rusage usage(void) {
  struct rusage u;
  assert(getrusage(RUSAGE_THREAD, &u) == 0);
  return u;
}

static void falls_not(const struct rusage* a, const struct rusage* b) {
  assert(b->ru_minflt >= a->ru_minflt && b->ru_majflt >= a->ru_majflt);
  assert(b->ru_nvcsw >= a->ru_nvcsw && b->ru_nivcsw >= a->ru_nivcsw);
}

static void touch_pages(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* p = mmap(NULL, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(p != MAP_FAILED);
  madvise(p, kPages * page, MADV_NOHUGEPAGE);
  for (int i = 0; i < kPages; i++) {
    p[(size_t)i * page] = 1;
    if (i % 100 == 0) sched_yield();
  }
  munmap(p, kPages * page);
}

static pthread_barrier_t all_touched;
static sem_t ping, pong;

static void* touches(void* p) {
  struct rusage a = usage();
  touch_pages();
  struct rusage b = usage();
  falls_not(&a, &b);
  assert(b.ru_minflt - a.ru_minflt >= kPages);
  assert(b.ru_minflt - a.ru_minflt < 2 * kPages);  // the others' are not in it
  pthread_barrier_wait(&all_touched);
  return p;
}

static void* waits(void* p) {
  struct rusage a = usage();
  pthread_barrier_wait(&all_touched);  // the others touch their pages meanwhile
  struct rusage b = usage();
  falls_not(&a, &b);
  assert(b.ru_minflt - a.ru_minflt < kPages);
  for (int i = 0; i < 10; i++) usleep(1000);
  struct rusage c;
  assert(syscall(SYS_getrusage, RUSAGE_THREAD, &c) == 0);
  falls_not(&b, &c);
  assert(c.ru_nvcsw - b.ru_nvcsw >= 10);
  return p;
}

static void* answers(void* p) {
  for (int i = 0; i < kRounds; i++) {
    sem_wait(&ping);
    usleep(100);  // so the other one has to wait
    sem_post(&pong);
  }
  return p;
}

static void* asks(void* p) {
  struct rusage first = usage(), last = first;
  for (int i = 0; i < kRounds; i++) {
    sem_post(&ping);
    sem_wait(&pong);
    struct rusage now = usage();
    falls_not(&last, &now);
    last = now;
  }
  assert(last.ru_nvcsw - first.ru_nvcsw >= kRounds / 2);  // a busy machine may let it sleep less often
  return p;
}

int main(void) {
  struct rusage at_first = usage();
  sem_init(&ping, 0, 0);
  sem_init(&pong, 0, 0);
  pthread_barrier_init(&all_touched, NULL, kThreads + 1);
  pthread_t t[kThreads + 3];
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, touches, NULL);
  pthread_create(&t[kThreads], NULL, waits, NULL);
  pthread_create(&t[kThreads + 1], NULL, answers, NULL);
  pthread_create(&t[kThreads + 2], NULL, asks, NULL);
  struct rusage a = usage();
  falls_not(&at_first, &a);
  for (int i = 0; i < kThreads + 3; i++) pthread_join(t[i], NULL);
  struct rusage b = usage();
  falls_not(&a, &b);
  assert(b.ru_minflt - a.ru_minflt < kPages);
  touch_pages();
  struct rusage c = usage();
  assert(c.ru_minflt - b.ru_minflt >= kPages);
  // A thread that begins where another has ended begins anew.
  pthread_barrier_destroy(&all_touched);
  pthread_barrier_init(&all_touched, NULL, 1);
  pthread_create(&t[0], NULL, waits, NULL);
  pthread_join(t[0], NULL);
  puts("counted");
  return 0;
}
