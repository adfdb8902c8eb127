// SPDX-License-Identifier: MIT
// Many threads wait in the kernel at once. When they have ended, so have their kernel threads, with their memory, and all goes on as before.
// A kernel thread with which the kernel keeps something for a thread that lives does not end.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kThreads = 200, kRounds = 3, kOwners = 8, kFewTasks = 30, kFewMaps = 250, kGuardMaps = 550 };

static struct Shared {
  pthread_mutex_t m;
  pthread_cond_t c;
  int waiting, go;
}* shared;
static char lock_name[] = "/tmp/idle_threads.XXXXXX";

static int tasks(void) {
  DIR* d = opendir("/proc/self/task");
  int n = -2;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}
static int maps(void) {
  FILE* f = fopen("/proc/self/maps", "r");
  int n = 0;
  for (int c; (c = getc(f)) != EOF;) n += c == '\n';
  fclose(f);
  return n;
}
// Before Linux 6.13 each stack that is kept has a guard, which parts its surroundings in two.
static int guards_are_maps(void) {
  void* page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return madvise(page, (size_t)sysconf(_SC_PAGESIZE), 102 /* MADV_GUARD_INSTALL */) != 0;
}
static void until_few(const char* when, int most_tasks, int most_maps) {
  int t = 0, m = 0;
  for (int i = 0; i < 6000; i++) {
    if ((t = tasks()) <= most_tasks && (m = maps()) <= most_maps) return;
    usleep(10000);
  }
  printf("%s: %d kernel threads and %d mappings are left\n", when, t, m);
  exit(1);
}

// ---- waits in the kernel ----

static void* wait_shared(void* p) {
  pthread_mutex_lock(&shared->m);
  shared->waiting++;
  while (!shared->go) pthread_cond_wait(&shared->c, &shared->m);
  pthread_mutex_unlock(&shared->m);
  return p;
}
static void until_shared(int n) {
  for (int seen = -1; seen != n; usleep(1000)) {
    pthread_mutex_lock(&shared->m);
    seen = shared->waiting;
    pthread_mutex_unlock(&shared->m);
  }
}
static void wake_shared(void) {
  pthread_mutex_lock(&shared->m);
  shared->go = 1;
  pthread_cond_broadcast(&shared->c);
  pthread_mutex_unlock(&shared->m);
}
static void burst(void* (*f)(void*), int n, void (*let_go)(int)) {
  pthread_t t[kThreads];
  for (int i = 0; i < n; i++) assert(pthread_create(&t[i], 0, f, (void*)(intptr_t)i) == 0);
  let_go(n);
  for (int i = 0; i < n; i++) {
    void* result;
    assert(pthread_join(t[i], &result) == 0 && result == (void*)(intptr_t)i);
  }
}
static void let_shared_go(int n) {
  until_shared(n);
  wake_shared();
}
static void shared_burst(int n) {
  shared->waiting = shared->go = 0;
  burst(wait_shared, n, let_shared_go);
}

static int locked = -1;
static int open_lock(void) {
  int fd = open(lock_name, O_RDWR | O_CLOEXEC);
  assert(fd >= 0);
  return fd;
}
static void* lock_file(void* p) {
  int fd = open_lock();
  while (flock(fd, LOCK_EX) != 0) continue;
  close(fd);
  return p;
}
static void let_lockers_go(int n) {
  while (tasks() < n) usleep(1000);  // each sleeps in the kernel, on a kernel thread of its own
  flock(locked, LOCK_UN);
}
static void lock_burst(int n) {
  flock(locked, LOCK_EX);
  burst(lock_file, n, let_lockers_go);
}

static void make_shared(void) {
  shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&shared->m, &a);
  pthread_condattr_t b;
  pthread_condattr_init(&b);
  pthread_condattr_setpshared(&b, PTHREAD_PROCESS_SHARED);
  pthread_cond_init(&shared->c, &b);
}

static void child_works(void) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    make_shared();
    shared_burst(20);
    _exit(7);
  }
  int status;
  assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// ---- what the kernel keeps with a kernel thread ----

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int owned, over;
static char lease_name[] = "/tmp/idle_threads_lease.XXXXXX";
static int lease = -1;
static volatile sig_atomic_t lease_breaks;
static int children[kOwners], to_child[2], from_child[2], requests[kOwners][2], results[kOwners];

// Begins to wait for the pipe by a ring. Returns the word that counts the results, and the result's place; null: there are no rings here.
static unsigned* begin_request(int pipe, int** result) {
  struct io_uring_params p = {0};
  int ring = (int)syscall(SYS_io_uring_setup, 2, &p);
  if (ring < 0 || !(p.features & IORING_FEAT_SINGLE_MMAP)) return 0;
  char* words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  struct io_uring_sqe* e = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  assert(words != MAP_FAILED && e != MAP_FAILED);
  memset(e, 0, sizeof *e);
  e->opcode = IORING_OP_POLL_ADD;
  e->fd = pipe;
  e->poll_events = POLLIN;
  *(unsigned*)(words + p.sq_off.array) = 0;
  __atomic_store_n((unsigned*)(words + p.sq_off.tail), 1, __ATOMIC_RELEASE);
  assert(syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0) == 1);
  *result = &((struct io_uring_cqe*)(words + p.cq_off.cqes))->res;
  return (unsigned*)(words + p.cq_off.tail);
}

static void on_lease(int sig) {
  (void)sig;
  lease_breaks = 1;
}
static void break_lease(void) {
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGIO, SIG_IGN);
    _exit(open(lease_name, O_RDWR | O_NONBLOCK) < 0 && errno == EWOULDBLOCK ? 0 : 1);
  }
  int status;
  assert(waitpid(pid, &status, 0) == pid && status == 0);
  for (int i = 0; i < 6000 && !lease_breaks; i++) usleep(10000);
  if (!lease_breaks) puts("no signal came for the lease");
  fcntl(lease, F_SETLEASE, F_UNLCK);
}

// Comes back from the kernel on the kernel thread that it has slept on, leaves something there, and then waits without it.
static void* own_something(void* p) {
  intptr_t i = (intptr_t)p;
  int fd = open_lock(), *result;
  unsigned* count = 0;
  while (flock(fd, LOCK_EX) != 0) continue;
  flock(fd, LOCK_UN);  // a child would have the lock too
  close(fd);
  if (i < kOwners && i % 2) {
    count = begin_request(requests[i][0], &result);
  } else if (i == kOwners) {
    if (fcntl(lease, F_SETLEASE, F_WRLCK) != 0) lease = -1;  // not on this file system
  } else if (i < kOwners && (children[i] = fork()) == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte;
    _exit(read(to_child[0], &byte, 1) == 1 && write(from_child[1], &byte, 1) == 1 ? 0 : 1);
  }
  pthread_mutex_lock(&m);
  owned++;
  while (!over) pthread_cond_wait(&c, &m);
  pthread_mutex_unlock(&m);
  if (count)
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) != 1) usleep(1000);
  if (i < kOwners) results[i] = count ? *result : POLLIN;
  return p;
}
static void let_owners_go(int n) {
  let_lockers_go(n);
  for (int seen = 0; seen < n; usleep(1000)) {
    pthread_mutex_lock(&m);
    seen = owned;
    pthread_mutex_unlock(&m);
  }
  // On NPTL each of these threads keeps its kernel thread.
  if (getenv("LD_PRELOAD")) until_few("with owners", kFewTasks + kOwners, 4096);
  char byte = 1;
  for (int i = 0; i < kOwners; i += 2) assert(write(to_child[1], &byte, 1) == 1);
  for (int i = 1; i < kOwners; i += 2) assert(write(requests[i][1], &byte, 1) == 1);
  for (int i = 0; i < kOwners; i += 2) {
    int status;
    assert(waitpid(children[i], &status, 0) == children[i]);
    if (status) printf("a child has ended with status %x\n", status);
  }
  if (lease >= 0) break_lease();
  pthread_mutex_lock(&m);
  over = 1;
  pthread_cond_broadcast(&c);
  pthread_mutex_unlock(&m);
}

int main() {
  int fd = mkstemp(lock_name);
  assert(fd >= 0);
  close(fd);
  locked = open_lock();
  make_shared();
  for (int round = 0; round < kRounds; round++) {
    shared_burst(kThreads);
    child_works();
    lock_burst(kThreads);
    until_few("after a burst", kFewTasks, kFewMaps + (guards_are_maps() ? kGuardMaps : 0));
    child_works();
    printf("round %d\n", round);
  }
  assert(pipe(to_child) == 0 && pipe(from_child) == 0);
  for (int i = 0; i < kOwners; i++) assert(pipe(requests[i]) == 0);
  signal(SIGIO, on_lease);
  lease = mkstemp(lease_name);
  flock(locked, LOCK_EX);
  burst(own_something, kThreads / 2, let_owners_go);
  for (int i = 0; i < kOwners; i++)
    if (results[i] != POLLIN) printf("request %d: result %d\n", i, results[i]);
  puts("nothing was lost");
  unlink(lock_name);
  unlink(lease_name);
  return 0;
}
