// SPDX-License-Identifier: MIT
// Mutexes in libc's own form, and robust ones. The test has what each call answers for each kind, and mutual exclusion of many threads in
// two processes.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct Kind {
  int type, robust, protocol, shared;
};

static void make_mutex(pthread_mutex_t* m, struct Kind k) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, k.type);
  pthread_mutexattr_setrobust(&a, k.robust);
  pthread_mutexattr_setprotocol(&a, k.protocol);
  pthread_mutexattr_setpshared(&a, k.shared);
  assert(pthread_mutex_init(m, &a) == 0);
  pthread_mutexattr_destroy(&a);
}

static struct timespec after_ms(clockid_t clock, long ms) {
  struct timespec t;
  clock_gettime(clock, &t);
  t.tv_nsec += ms * 1000000;
  t.tv_sec += t.tv_nsec / 1000000000;
  t.tv_nsec %= 1000000000;
  return t;
}

// Another thread's calls. They are made one at a time, while the first thread does what the case says.
enum Call { kTry, kTimed, kClock, kBadClock, kInvalid, kUnlock, kLock, kLockAndEnd, kConsistent, kCondWait };
struct Other {
  pthread_mutex_t* m;
  enum Call call;
  int result;
};
static int call(pthread_mutex_t* m, enum Call c) {
  struct timespec soon = after_ms(CLOCK_REALTIME, 3), soon_mono = after_ms(CLOCK_MONOTONIC, 3), bad = {0, 1000000000};
  pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
  switch (c) {
    case kTry: return pthread_mutex_trylock(m);
    case kTimed: return pthread_mutex_timedlock(m, &soon);
    case kClock: return pthread_mutex_clocklock(m, CLOCK_MONOTONIC, &soon_mono);
    case kBadClock: return pthread_mutex_clocklock(m, CLOCK_PROCESS_CPUTIME_ID, &soon_mono);
    case kInvalid: return pthread_mutex_timedlock(m, &bad);
    case kUnlock: return pthread_mutex_unlock(m);
    case kLock:
    case kLockAndEnd: return pthread_mutex_lock(m);
    case kConsistent: return pthread_mutex_consistent(m);
    case kCondWait: return pthread_cond_timedwait(&cond, m, &soon);
  }
  return -1;
}
static void* other_main(void* p) {
  struct Other* o = p;
  o->result = call(o->m, o->call);
  if (o->call != kLockAndEnd && o->call != kUnlock && o->call != kConsistent && (o->result == 0 || o->result == EOWNERDEAD))
    pthread_mutex_unlock(o->m);
  return NULL;
}
static int other(pthread_mutex_t* m, enum Call c) {
  struct Other o = {m, c, -1};
  pthread_t t;
  assert(pthread_create(&t, NULL, other_main, &o) == 0);
  pthread_join(t, NULL);
  return o.result;
}

static void print(const char* what, int e) { printf(" %s=%s", what, e ? strerrorname_np(e) : "0"); }

static void cases(struct Kind k) {
  pthread_mutex_t* m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int checks = k.type == PTHREAD_MUTEX_RECURSIVE || k.type == PTHREAD_MUTEX_ERRORCHECK;
  int old;
  printf("type %d robust %d protocol %d shared %d:", k.type, k.robust, k.protocol, k.shared);
  make_mutex(m, k);
  print("lock", call(m, kLock));
  print("try", call(m, kTry));
  if (checks) {
    print("again", call(m, kLock));
    print("timed", call(m, kTimed));
    print("clock", call(m, kClock));
  }
  print("kind", m->__data.__count != 0);
  print("other try", other(m, kTry));
  print("other timed", other(m, kTimed));
  print("other clock", other(m, kClock));
  print("other bad clock", other(m, kBadClock));
  print("other invalid", other(m, kInvalid));
  if (checks || k.robust || k.protocol) print("other unlock", other(m, kUnlock));
  if (checks || k.robust || k.protocol) print("other cond", other(m, kCondWait));
  print("consistent", pthread_mutex_consistent(m));
  print("ceiling", pthread_mutex_getprioceiling(m, &old));
  print("set ceiling", pthread_mutex_setprioceiling(m, 1, &old));
  while (pthread_mutex_unlock(m) == 0 && checks) {
  }
  print("other", other(m, kLock));
  if (checks || k.robust) print("unlock", pthread_mutex_unlock(m));
  print("clock bad", call(m, kBadClock));
  print("free invalid", other(m, kInvalid));
  print("timed", call(m, kTimed));
  print("cond", call(m, kCondWait));
  pthread_mutex_unlock(m);
  if (k.robust) {
    print("\n  end", other(m, kLockAndEnd));
    print("try", call(m, kTry));
    if (k.type != PTHREAD_MUTEX_RECURSIVE) print("again", call(m, kTry));
    print("other try", other(m, kTry));
    print("consistent", pthread_mutex_consistent(m));
    print("twice", pthread_mutex_consistent(m));
    print("unlock", call(m, kUnlock));
    print("lock", call(m, kLock));
    print("unlock", call(m, kUnlock));
    print("end", other(m, kLockAndEnd));
    print("timed", call(m, kTimed));
    print("unlock", call(m, kUnlock));
    print("lock", call(m, kLock));
    print("timed", call(m, kTimed));
    print("other", other(m, kLock));
    print("consistent", pthread_mutex_consistent(m));
    print("unlock", call(m, kUnlock));
    print("try", call(m, kTry));  // last, since NPTL's call keeps the mutex locked then
  }
  print("destroy", pthread_mutex_destroy(m));
  puts("");
  munmap(m, 4096);
}

static void* all_cases(void* p) {
  for (int shared = 0; shared < 2; shared++)
    for (int robust = 0; robust < 2; robust++)
      for (int protocol = 0; protocol < 2; protocol++)
        for (int type = 0; type < 4; type++)
          if (shared || robust || protocol) cases((struct Kind){type, robust, protocol, shared});
  return p;
}

// Threads of two processes.
enum { kThreads = 6, kRounds = 300, kMutexes = 8 };
struct Place {
  pthread_mutex_t m[kMutexes];
  long count[kMutexes], inside[kMutexes];
};
static struct Place* place;
static void* count(void* p) {
  long me = (long)p;
  for (int i = 0; i < kRounds; i++) {
    int j = (int)((i + me) % kMutexes);
    int e;
    switch (i % 4) {
      case 0:
        do e = pthread_mutex_trylock(&place->m[j]);
        while (e == EBUSY && (sched_yield(), 1));
        break;
      case 1: {
        struct timespec t = after_ms(CLOCK_REALTIME, 1000000);
        e = pthread_mutex_timedlock(&place->m[j], &t);
        break;
      }
      default: e = pthread_mutex_lock(&place->m[j]);
    }
    assert(e == 0 && ++place->inside[j] == 1);
    long was = place->count[j];
    if (i % 16 == 0) usleep(20);
    else if (i % 8 == 0) sched_yield();
    place->count[j] = was + 1;
    assert(--place->inside[j] == 0);
    e = pthread_mutex_unlock(&place->m[j]);
    assert(e == 0);
  }
  return NULL;
}
static void count_all(void) {
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, count, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
}
static void exclusion(int robust, int protocol) {
  for (int i = 0; i < kMutexes; i++) make_mutex(&place->m[i], (struct Kind){i % 4, robust, protocol, PTHREAD_PROCESS_SHARED});
  memset(place->count, 0, sizeof place->count);
  pid_t child = fork();
  if (child == 0) {
    count_all();
    _exit(0);
  }
  count_all();
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  long sum = 0;
  for (int i = 0; i < kMutexes; i++) sum += place->count[i];
  printf("robust %d protocol %d: %ld\n", robust, protocol, sum);
}

// main has held these mutexes since before there were threads.
static void* nothing(void* p) { return p; }
static void before_threads(pthread_mutex_t* held, int n) {
  pthread_t t;
  for (int i = 0; i < n; i++) print("lock", pthread_mutex_lock(&held[i]));
  for (int i = 0; i < 50; i++) {
    pthread_create(&t, NULL, nothing, NULL);
    pthread_join(t, NULL);
  }
  for (int i = 0; i < n; i++) print("try", other(&held[i], kTry));
  for (int i = 0; i < n; i++) print("unlock", pthread_mutex_unlock(&held[i]));
  for (int i = 0; i < n; i++) print("other", other(&held[i], kLock));
  puts("");
}

int main() {
  place = mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static pthread_mutex_t held[16];
  int n = 0;
  for (int robust = 0; robust < 2; robust++)
    for (int protocol = 0; protocol < 2; protocol++)
      for (int type = 0; type < 4; type++) make_mutex(&held[n++], (struct Kind){type, robust, protocol, PTHREAD_PROCESS_SHARED});
  before_threads(held, n);
  all_cases(NULL);
  pthread_t t;
  pthread_create(&t, NULL, all_cases, NULL);
  pthread_join(t, NULL);
  for (int robust = 0; robust < 2; robust++)
    for (int protocol = 0; protocol < 2; protocol++) exclusion(robust, protocol);
  return 0;
}
