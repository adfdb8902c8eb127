// SPDX-License-Identifier: MIT
// Robust mutexes whose owner's process is killed, exits or calls exec, or whose owner ends in any other way. Threads wait at that time, and
// there are many mutexes at once. Also a condition variable between processes that is used with such a mutex.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMutexes = 48, kThreads = 8 };
static struct Place {
  pthread_mutex_t m[kMutexes];
  pthread_cond_t c;
  atomic_int ready, held, go;
  long count;
}* place;

static void make_mutex(pthread_mutex_t* m, int type, int protocol, int shared) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_settype(&a, type);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_setprotocol(&a, protocol);
  pthread_mutexattr_setpshared(&a, shared);
  assert(pthread_mutex_init(m, &a) == 0);
}
static int mains(int i) { return i % (kThreads + 1) == kThreads; }
static void make_all(int shared, int main_inherits) {
  memset(place, 0, sizeof *place);
  for (int i = 0; i < kMutexes; i++) make_mutex(&place->m[i], i % 4, i / 4 % 2 && (main_inherits || !mains(i)), shared);
  pthread_condattr_t ca;
  pthread_condattr_init(&ca);
  pthread_condattr_setpshared(&ca, shared);
  pthread_cond_init(&place->c, &ca);
}

// ---- a process that ends while its threads hold mutexes ----

// In every second case, main owns its mutexes before there is a thread.
enum Ending { kKill, kExit, kMainEnds, kMainEndsToo, kExec, kKillToo, kHows };
static const char* const hows[] = {"killed", "exits", "main ends", "main ends, an owner before", "execs", "killed, an owner before"};

static void* hold(void* p) {
  for (long i = (long)p; i < kMutexes; i += kThreads + 1) assert(pthread_mutex_lock(&place->m[i]) == 0);
  place->held++;
  for (;;) {  // some owners are parked, and some are running
    if ((long)p % 2) usleep(1000);
    else sched_yield();
  }
}
static void own_some(void) {
  for (long i = kThreads; i < kMutexes; i += kThreads + 1) assert(pthread_mutex_lock(&place->m[i]) == 0);
}
static void holder(enum Ending how) {
  pthread_t t;
  if (how % 2) own_some();
  for (long i = 0; i < kThreads; i++) pthread_create(&t, NULL, hold, (void*)i);
  if (how % 2 == 0) own_some();
  while (place->held < kThreads) usleep(100);
  place->ready = 1;
  while (!place->go) usleep(100);
  switch (how) {
    case kKill:
    case kKillToo: kill(getpid(), SIGKILL); break;
    case kExit: _exit(0);
    case kMainEnds:
    case kMainEndsToo:
      // The other threads must end too, or the process would not. A signal without a handler ends them.
      alarm(1);
      pthread_exit(NULL);
    default: execl("/bin/true", "true", NULL);
  }
  for (;;) pause();
}

static atomic_int dead, normal;
static void* wait_for_owner(void* p) {
  long me = (long)p;
  for (int i = 0; i < kMutexes; i++) {
    int j = (int)((i * 5 + me * 11) % kMutexes);
    int e = pthread_mutex_lock(&place->m[j]);
    if (e == EOWNERDEAD) {
      dead++;
      assert(pthread_mutex_consistent(&place->m[j]) == 0);
    } else {
      assert(e == 0);
      normal++;
    }
    place->count++;  // many threads do this under different mutexes, so the sum means nothing
    e = pthread_mutex_unlock(&place->m[j]);
    if (e) printf("%d: unlock: %s %#x %d\n", j, strerrorname_np(e), place->m[j].__data.__lock, place->m[j].__data.__owner);
  }
  return NULL;
}
static void process_ends(enum Ending how) {
  make_all(PTHREAD_PROCESS_SHARED, how % 2);
  dead = normal = 0;
  pid_t child = fork();
  if (child == 0) holder(how);
  while (!place->ready) usleep(100);
  for (int i = 0; i < kMutexes; i++) assert(pthread_mutex_trylock(&place->m[i]) == EBUSY);
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, wait_for_owner, (void*)i);
  usleep(5000);  // they wait
  place->go = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  int status;
  assert(waitpid(child, &status, 0) == child);
  printf("%s: %d with a dead owner, %d without\n", hows[how], dead, normal);
}

// ---- threads that end ----

static atomic_int waiting;
static void* lock_all(void* p) {
  for (int i = 0; i < kMutexes; i++) {
    int e = pthread_mutex_lock(&place->m[i]);
    assert(e == 0);
    if (i % 4 == PTHREAD_MUTEX_RECURSIVE) assert(pthread_mutex_lock(&place->m[i]) == 0);
  }
  // Unlocks some in the middle of the list.
  for (int i = 1; i < kMutexes; i += 7) {
    assert(pthread_mutex_unlock(&place->m[i]) == 0);
    if (i % 4 == PTHREAD_MUTEX_RECURSIVE) assert(pthread_mutex_unlock(&place->m[i]) == 0);
  }
  place->held = 1;
  while (waiting < kThreads) usleep(100);
  switch ((long)p) {
    case 0: return NULL;
    case 1: pthread_exit(NULL);
    case 2: syscall(SYS_exit, 0); __attribute__((fallthrough));
    default:
      for (;;) pause();  // until the thread is cancelled
  }
}
static void* wait_for_thread(void* p) {
  waiting++;
  return wait_for_owner(p);
}
static void thread_ends(long how, int shared) {
  make_all(shared, 1);
  dead = normal = waiting = 0;
  pthread_t owner, t[kThreads];
  pthread_create(&owner, NULL, lock_all, (void*)how);
  while (!place->held) usleep(100);
  for (long i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, wait_for_thread, (void*)i);
  if (how == 3) {
    while (waiting < kThreads) usleep(100);
    pthread_cancel(owner);
  }
  pthread_join(owner, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("thread ends %ld, shared %d: %d with a dead owner, %d without\n", how, shared, dead, normal);

  // Once the owner is joined, its mutexes are free at once. No thread waited for them.
  for (int i = 0; i < kMutexes; i++) make_mutex(&place->m[i], i % 4, i / 4 % 2, shared);
  waiting = kThreads;
  if (how == 3) return;
  pthread_create(&owner, NULL, lock_all, (void*)how);
  pthread_join(owner, NULL);
  int n = 0;
  for (int i = 0; i < kMutexes; i++) {
    int e = pthread_mutex_trylock(&place->m[i]);
    n += e == EOWNERDEAD;
    if (e != 0 && e != EOWNERDEAD) printf("%d: %s\n", i, strerrorname_np(e));
    if (e == EOWNERDEAD) pthread_mutex_consistent(&place->m[i]);
    pthread_mutex_unlock(&place->m[i]);
    assert(pthread_mutex_destroy(&place->m[i]) == 0);
  }
  printf("  joined: %d\n", n);
}

// ---- a robust mutex, its condition variable, and a child that dies now and then while it has the mutex ----

static int lock_robust(pthread_mutex_t* m) {
  int e = pthread_mutex_lock(m);
  if (e == EOWNERDEAD) pthread_mutex_consistent(m);
  else assert(e == 0);
  return e;
}
static void* take_turns(void* p) {
  pthread_mutex_t* m = &place->m[0];
  long me = (long)p;
  lock_robust(m);
  while (place->count < 400) {
    if (place->count % kThreads != me) {
      int e = pthread_cond_wait(&place->c, m);
      if (e == EOWNERDEAD) pthread_mutex_consistent(m);
      else assert(e == 0);
      continue;
    }
    place->count++;
    pthread_cond_broadcast(&place->c);
    if (me == kThreads - 1 && place->count % 32 == 0) {  // this thread is alone in its process
      place->held++;
      kill(getpid(), SIGKILL);
    }
  }
  pthread_cond_broadcast(&place->c);
  pthread_mutex_unlock(m);
  return NULL;
}
static void turns(int type, int protocol) {
  make_all(PTHREAD_PROCESS_SHARED, 1);
  make_mutex(&place->m[0], type, protocol, PTHREAD_PROCESS_SHARED);
  pthread_t t[kThreads];
  for (long i = 0; i < kThreads - 1; i++) pthread_create(&t[i], NULL, take_turns, (void*)i);
  int deaths = 0, status;
  do {
    pid_t child = fork();
    if (child == 0) {
      pthread_t u;
      pthread_create(&u, NULL, take_turns, (void*)(long)(kThreads - 1));
      pthread_join(u, NULL);
      _exit(0);
    }
    assert(waitpid(child, &status, 0) == child);
    deaths += WIFSIGNALED(status);
  } while (status != 0);
  for (int i = 0; i < kThreads - 1; i++) pthread_join(t[i], NULL);
  printf("turns: %ld, %d deaths\n", place->count, deaths);
}

// ---- a list that the program made itself ----

struct Entry {
  struct Entry* next;
  long unused;
  _Atomic unsigned word;
};
static struct {
  struct Entry* first;
  long offset;
  struct Entry* pending;
} head;
static struct Entry entries[3];
static void* own_list(void* p) {
  unsigned tid = (unsigned)syscall(SYS_gettid);
  head.first = &entries[0];
  head.offset = offsetof(struct Entry, word);
  entries[0].next = &entries[1];
  entries[1].next = (struct Entry*)&head;
  head.pending = &entries[2];
  entries[0].word = entries[2].word = tid;
  entries[1].word = 1;  // this entry has another owner
  assert(syscall(SYS_set_robust_list, &head, sizeof head) == 0);
  return p;
}

int main() {
  place = mmap(NULL, sizeof *place, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (enum Ending how = 0; how < kHows; how++) process_ends(how);
  for (long how = 0; how < 4; how++)
    for (int shared = 0; shared < 2; shared++) thread_ends(how, shared);
  for (int type = 0; type < 4; type++)
    for (int protocol = 0; protocol < 2; protocol++) turns(type, protocol);
  pthread_t t;
  pthread_create(&t, NULL, own_list, NULL);
  pthread_join(t, NULL);
  printf("%#x %#x %#x\n", entries[0].word, entries[1].word, entries[2].word);
  return 0;
}
