// SPDX-License-Identifier: MIT
// deadlock CASE: threads that wait for each other for ever. Prints the lines that a report of the deadlock must have.
#include "deadlock.h"

static pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t b;
static int n;  // threads in the cycle

static void expect(const char* format, ...) {
  va_list list;
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  putchar('\n');
  fflush(stdout);
}

static void* in_cycle(void* p) {
  long i = (long)p;
  named(i);
  pthread_mutex_lock(&m[i]);
  pthread_barrier_wait(&b);
  if (i == 0) {
    printf("cycle: fiber %ld 'a'", tid[0]);
    for (int j = 0; j < n; j++) {
      int next = (j + 1) % n;
      printf("%s waits for mutex %p held by fiber %ld '%c'", j ? ", which" : "", &m[next], tid[next], 'a' + next);
    }
    expect("");
    expect("fiber %ld 'b', started at %p, waits for mutex %p held by fiber %ld '%c', for ", tid[1], (void*)in_cycle, &m[2 % n], tid[2 % n],
           'a' + 2 % n);
    expect(" (base ");
    expect("fibers: %d parked, 0 completed, %d spawned", n + 1, n);
  }
  pthread_barrier_wait(&b);
  pthread_mutex_lock(&m[(i + 1) % n]);
  return NULL;
}
static void cycle(int members) {
  n = members;
  pthread_barrier_init(&b, NULL, n);
  for (long i = 0; i < n; i++) t[i] = start(in_cycle, i);
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}

static void* lock_first(void* p) {
  named(0);
  expect("cycle: fiber %d (main) waits for the end of fiber %ld 'a', which waits for mutex %p held by fiber %d (main)", getpid(), tid[0],
         &m[0], getpid());
  expect("fibers: 2 parked, 0 completed, 1 spawned");
  pthread_mutex_lock(&m[0]);
  return NULL;
}
static void join_while_held(void) {
  pthread_mutex_lock(&m[0]);
  pthread_join(start(lock_first, 0), NULL);
}

// The same, long after anything else has run.
static void late(void) {
  int fd[2];
  char x;
  pipe(fd);
  later(write_byte, (void*)(long)fd[1]);
  pthread_mutex_lock(&m[0]);
  t[0] = start(lock_first, 0);
  read(fd[0], &x, 1);
  pthread_join(t[0], NULL);
}

static void* lock_twice(void* p) {
  named(0);
  pthread_mutex_lock(&m[0]);
  expect("cycle: fiber %ld 'a' waits for mutex %p held by itself", tid[0], &m[0]);
  pthread_mutex_lock(&m[0]);
  return NULL;
}

// The only thread that could go on has a kernel thread of its own, and slept with a deadline when nothing else ran.
static void* nap_and_lock(void* p) {
  bind_to_cpu();
  quiet();
  return lock_first(p);
}
static void bound(void) {
  pthread_mutex_lock(&m[0]);
  t[0] = start(nap_and_lock, 0);
  pthread_join(t[0], NULL);
}

static void lost_wakeup(void) {
  t[0] = start(wait_cond, 0);
  for (long id = 0; !id; usleep(1000)) {
    pthread_mutex_lock(&m[0]);
    id = tid[0];
    pthread_mutex_unlock(&m[0]);
  }
  expect("fiber %ld 'a', started at %p, waits for cond %p, for ", tid[0], (void*)wait_cond, &c);
  expect("fiber %d (main) waits for the end of fiber %ld 'a', for ", getpid(), tid[0]);
  expect("no cycle: ");
  pthread_join(t[0], NULL);
}

// A broadcast moves the waiters to the mutex.
static void broadcast_and_join(void) {
  for (long i = 0; i < 2; i++) t[i] = start(wait_cond, i);
  for (;; usleep(1000)) {
    pthread_mutex_lock(&m[0]);
    if (tid[0] && tid[1]) break;
    pthread_mutex_unlock(&m[0]);
  }
  pthread_cond_broadcast(&c);
  expect("cycle: fiber %d (main) waits for the end of fiber %ld 'a', which waits for mutex %p held by fiber %d (main)", getpid(), tid[0],
         &m[0], getpid());
  expect("fiber %ld 'b', started at %p, waits for mutex %p held by fiber %d (main), for ", tid[1], (void*)wait_cond, &m[0], getpid());
  pthread_join(t[0], NULL);
}

// The mutex has another owner than when the last waiter began to wait.
static void* take_turns(void* p) {
  long i = (long)p;
  named(i);
  sem_post(&s);
  pthread_mutex_lock(&m[0]);
  if (i == 0) {
    expect("cycle: fiber %ld 'a' waits for the end of fiber %ld 'b', which waits for mutex %p held by fiber %ld 'a'", tid[0], tid[1], &m[0],
           tid[0]);
    pthread_join(t[1], NULL);
  }
  return NULL;
}
static void handed_on(void) {
  pthread_mutex_lock(&m[0]);
  for (long i = 0; i < 2; i++) {
    t[i] = start(take_turns, i);
    sem_wait(&s);
    usleep(20000);  // then the thread is in the mutex's queue
  }
  pthread_mutex_unlock(&m[0]);
  sem_wait(&s);
}

static void* read_lock(void* p) {
  named(0);
  expect("cycle: fiber %d (main) waits for the end of fiber %ld 'a', which waits for rwlock (read) %p held by fiber %d (main)", getpid(),
         tid[0], &l, getpid());
  pthread_rwlock_rdlock(&l);
  return NULL;
}
static void written(void) {
  pthread_rwlock_wrlock(&l);
  pthread_join(start(read_lock, 0), NULL);
}

static void* lock_and_end(void* p) {
  named(0);
  pthread_mutex_lock(&m[0]);
  return NULL;
}
static void owner_ended(void) {
  t[0] = start(lock_and_end, 0);
  for (int free = 0; !tid[0] || free; usleep(1000)) {
    free = pthread_mutex_trylock(&m[0]) == 0;
    if (free) pthread_mutex_unlock(&m[0]);
  }
  expect("fiber %d (main) waits for mutex %p held by fiber %ld 'a', which has ended, for ", getpid(), &m[0], tid[0]);
  expect("no cycle: ");
  pthread_mutex_lock(&m[0]);
}

// Another thread gets the record of the dead owner. It is not the owner.
static void* nothing(void* p) { return NULL; }
static void owner_recycled(void) {
  pthread_join(start(lock_and_end, 0), NULL);
  t[1] = start(wait_sem, 0);
  expect("fiber %d (main) waits for mutex %p, for ", getpid(), &m[0]);
  expect("no cycle: ");
  pthread_mutex_lock(&m[0]);
}

static void many(void) {
  for (int i = 0; i < 150; i++) t[i] = start(wait_sem, 0);
  expect("fibers: 151 parked, 0 completed, 150 spawned");
  expect("… and 51 more");
  expect("waits for semaphore %p, for ", &s);
  pthread_join(t[0], NULL);
}

static void in_child(void) {
  pthread_join(start(nothing, 0), NULL);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    cycle(2);
  }
  waitpid(child, NULL, 0);
}

static void two(void) { cycle(2); }
static void three(void) { cycle(3); }
static void twice(void) { pthread_join(start(lock_twice, 0), NULL); }

static const struct named_case cases[] = {
    {"two", two},        {"three", three},       {"join", join_while_held},       {"late", late},
    {"twice", twice},    {"lost", lost_wakeup},  {"requeue", broadcast_and_join}, {"handed", handed_on},
    {"rwlock", written}, {"ended", owner_ended}, {"recycled", owner_recycled},    {"many", many},
    {"child", in_child}, {"bound", bound},
};

int main(int argc, char** argv) { return run_case(cases, sizeof cases / sizeof *cases, argc, argv); }
