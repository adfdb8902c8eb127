// SPDX-License-Identifier: MIT
// Process-shared objects of all kinds in a file that several processes map; shared.sh runs them with and without the library.
//   shared FILE make PROCESSES     makes the objects
//   shared FILE work NUMBER        uses all of them by threads, together with the other processes
//   shared FILE check              checks that nothing was lost
//   shared FILE hold               locks all robust mutexes, prints "held" and waits to be killed
//   shared FILE recover            checks that they have lost their owner, and recovers them
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kThreads = 6, kRounds = 200, kKinds = 16, kRobust = 48, kItems = 600 };
struct Objects {
  int processes;
  pthread_mutex_t mutex[kKinds];
  long count[kKinds], inside[kKinds];
  pthread_mutex_t robust[kRobust];

  pthread_rwlock_t rwlock;
  long written, writers;
  atomic_int readers;

  sem_t sem;  // admits three threads at a time
  atomic_int in_sem;
  atomic_long sem_uses;

  pthread_barrier_t barrier;
  atomic_long serial[8], arrived[8];

  // A queue of one place: a producer and a consumer in each process.
  pthread_mutex_t queue_mutex;
  pthread_cond_t filled, emptied;
  int full, produced, consumed;
  long value, sum;
};
static struct Objects* o;
static sem_t* named;

static void make_mutex(pthread_mutex_t* m, int i, int robust) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_settype(&a, i % 4);
  pthread_mutexattr_setprotocol(&a, i / 4 % 2);
  pthread_mutexattr_setrobust(&a, robust);
  assert(pthread_mutex_init(m, &a) == 0);
}

static void make_objects(int processes) {
  memset(o, 0, sizeof *o);
  o->processes = processes;
  for (int i = 0; i < kKinds; i++) make_mutex(&o->mutex[i], i, i / 8);
  for (int i = 0; i < kRobust; i++) make_mutex(&o->robust[i], i, 1);
  pthread_rwlockattr_t ra;
  pthread_rwlockattr_init(&ra);
  pthread_rwlockattr_setpshared(&ra, PTHREAD_PROCESS_SHARED);
  pthread_rwlock_init(&o->rwlock, &ra);
  sem_init(&o->sem, 1, 3);
  pthread_barrierattr_t ba;
  pthread_barrierattr_init(&ba);
  pthread_barrierattr_setpshared(&ba, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&o->barrier, &ba, (unsigned)(processes * kThreads));
  pthread_condattr_t ca;
  pthread_condattr_init(&ca);
  pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&o->filled, &ca);
  pthread_cond_init(&o->emptied, &ca);
  make_mutex(&o->queue_mutex, PTHREAD_MUTEX_ERRORCHECK, 1);
  for (int i = 0; i < 3; i++) sem_post(named);
}

static void a_while(int i) {
  if (i % 16 == 0) usleep(50);
  else if (i % 4 == 0) sched_yield();
}

static void use_mutexes(long me) {
  for (int i = 0; i < kRounds; i++) {
    int j = (int)(i + me) % kKinds;
    int e = pthread_mutex_lock(&o->mutex[j]);
    assert(e == 0);
    if (j % 4 == PTHREAD_MUTEX_RECURSIVE) assert(pthread_mutex_lock(&o->mutex[j]) == 0);
    if (j % 4 == PTHREAD_MUTEX_ERRORCHECK) assert(pthread_mutex_lock(&o->mutex[j]) == EDEADLK);
    assert(++o->inside[j] == 1);
    long was = o->count[j];
    a_while(i);
    o->count[j] = was + 1;
    assert(--o->inside[j] == 0);
    if (j % 4 == PTHREAD_MUTEX_RECURSIVE) assert(pthread_mutex_unlock(&o->mutex[j]) == 0);
    assert(pthread_mutex_unlock(&o->mutex[j]) == 0);
  }
}

static void use_rwlock(long me) {
  for (int i = 0; i < kRounds; i++) {
    int e;
    if ((i + me) % 4 == 0) {
      e = pthread_rwlock_wrlock(&o->rwlock);
      assert(e == 0);
      assert(++o->writers == 1 && o->readers == 0);
      a_while(i);
      o->written++;
      o->writers--;
      assert(pthread_rwlock_wrlock(&o->rwlock) == EDEADLK);
    } else {
      e = pthread_rwlock_rdlock(&o->rwlock);
      assert(e == 0);
      o->readers++;
      assert(o->writers == 0);
      a_while(i);
      o->readers--;
    }
    assert(pthread_rwlock_unlock(&o->rwlock) == 0);
  }
}

static void use_semaphores(void) {
  for (int i = 0; i < kRounds; i++) {
    sem_t* s = i % 2 ? &o->sem : named;
    int e = sem_wait(s);
    assert(e == 0);
    if (i % 2) assert(++o->in_sem <= 3);
    a_while(i);
    o->sem_uses++;
    if (i % 2) o->in_sem--;
    assert(sem_post(s) == 0);
  }
}

static void use_barrier(void) {
  for (int i = 0; i < 8; i++) {
    o->arrived[i]++;
    int e = pthread_barrier_wait(&o->barrier);
    assert(o->arrived[i] == o->processes * kThreads);
    if (e) assert(e == PTHREAD_BARRIER_SERIAL_THREAD && ++o->serial[i] == 1);
  }
}

static void* produce(void* p) {
  assert(pthread_mutex_lock(&o->queue_mutex) == 0);
  for (;;) {
    while (o->full && o->produced < kItems) assert(pthread_cond_wait(&o->emptied, &o->queue_mutex) == 0);
    if (o->produced == kItems) break;
    o->value = ++o->produced;
    o->full = 1;
    assert(pthread_cond_signal(&o->filled) == 0);
  }
  pthread_cond_broadcast(&o->emptied);
  assert(pthread_mutex_unlock(&o->queue_mutex) == 0);
  return p;
}
static void* consume(void* p) {
  assert(pthread_mutex_lock(&o->queue_mutex) == 0);
  for (;;) {
    while (!o->full && o->consumed < kItems) assert(pthread_cond_wait(&o->filled, &o->queue_mutex) == 0);
    if (o->consumed == kItems) break;
    o->sum += o->value;
    o->consumed++;
    o->full = 0;
    assert(pthread_cond_signal(&o->emptied) == 0);
  }
  pthread_cond_broadcast(&o->filled);
  assert(pthread_mutex_unlock(&o->queue_mutex) == 0);
  return p;
}

static void* work(void* p) {
  long me = (long)p;
  use_barrier();  // this makes all begin at the same time
  use_mutexes(me);
  use_rwlock(me);
  use_semaphores();
  return p;
}

static void work_all(void) {
  pthread_t t[kThreads], producer, consumer;
  pthread_create(&producer, NULL, produce, NULL);
  pthread_create(&consumer, NULL, consume, NULL);
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, work, (void*)i);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  pthread_join(producer, NULL);
  pthread_join(consumer, NULL);
}

static void check(void) {
  long counts = 0, serials = 0;
  for (int i = 0; i < kKinds; i++) counts += o->count[i];
  for (int i = 0; i < 8; i++) serials += o->serial[i];
  int left, left_named;
  sem_getvalue(&o->sem, &left);
  sem_getvalue(named, &left_named);
  int n = o->processes * kThreads * kRounds;
  printf("%d of mutexes, %d of rwlocks, %d of semaphores, %d %d left, %d serial, %d sum\n", (int)(n - counts), (int)(n / 4 - o->written),
         (int)(n - o->sem_uses), left, left_named, (int)serials, (int)(o->sum - kItems * (kItems + 1) / 2));
}

static atomic_int held;
static void* hold_some(void* p) {
  for (long i = (long)p; i < kRobust; i += kThreads) assert(pthread_mutex_lock(&o->robust[i]) == 0);
  held++;
  for (;;) (long)p % 2 ? usleep(500) : sched_yield();
}
static void hold(void) {
  pthread_t t;
  for (long i = 0; i < kThreads; i++) pthread_create(&t, NULL, hold_some, (void*)i);
  while (held < kThreads) usleep(100);
  puts("held");
  fflush(stdout);
  for (;;) pause();
}

static atomic_int dead;
static void* recover_all(void* p) {
  for (int i = 0; i < kRobust; i++) {
    int e = pthread_mutex_lock(&o->robust[i]);
    if (e == EOWNERDEAD) {
      dead++;
      assert(pthread_mutex_consistent(&o->robust[i]) == 0);
    } else {
      assert(e == 0);
    }
    assert(pthread_mutex_unlock(&o->robust[i]) == 0);
  }
  return p;
}
static void recover(void) {
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, recover_all, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%d had a dead owner\n", dead);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof *o) != 0) return 2;
  o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char name[64];
  snprintf(name, sizeof name, "/shared-test-%s", getenv("SHARED_NAME"));
  named = sem_open(name, O_CREAT, 0600, 0);
  assert(o != MAP_FAILED && named != SEM_FAILED);
  switch (argv[2][0]) {
    case 'm': make_objects(atoi(argv[3])); break;
    case 'w': work_all(); break;
    case 'c':
      check();
      sem_unlink(name);
      break;
    case 'h': hold(); break;
    case 'r': recover(); break;
  }
  return 0;
}
