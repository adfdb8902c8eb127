// SPDX-License-Identifier: MIT
// Threads of a program that keeps its memory in RAM. Their stacks are there from the beginning, and other memory does not come with them: after
// mlockall(MCL_FUTURE) the kernel fills each new mapping, and counts it against RLIMIT_MEMLOCK.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (printf("%s:%d: %s (errno %d)\n", __func__, __LINE__, #x, errno), fflush(stdout), _exit(1)))

enum { kThreads = 8, kMB = 1 << 20, kDeep = kMB / 8 };
static sem_t come, go;
static int in_ram[kThreads];

// Returns the MB that the line of /proc/self/status says.
static long status_mb(const char* name) {
  char line[256];
  long kb = -1;
  FILE* f = fopen("/proc/self/status", "r");
  CHECK(f);
  while (fgets(line, sizeof line, f))
    if (strncmp(line, name, strlen(name)) == 0) kb = atol(line + strlen(name) + 1);
  fclose(f);
  CHECK(kb >= 0);
  return kb / 1024;
}

// Looks at a page that the thread has not come to.
static void* look(void* p) {
  unsigned char resident = 0;
  uintptr_t here = (uintptr_t)&resident & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
  CHECK(mincore((void*)(here - kDeep), 1, &resident) == 0);
  *(int*)p = resident & 1;
  sem_post(&come);
  while (sem_wait(&go)) {
  }
  return p;
}

// Makes threads with such stacks, and returns by how much the process has grown. All stacks are to be in RAM, or none.
static long grows_by(size_t stack_size, int expected) {
  pthread_t t[kThreads];
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, stack_size);
  sem_init(&come, 0, 0);
  sem_init(&go, 0, 0);
  long before = status_mb("VmRSS:");
  for (int i = 0; i < kThreads; i++) CHECK((errno = pthread_create(&t[i], &a, look, &in_ram[i])) == 0);
  for (int i = 0; i < kThreads; i++)
    while (sem_wait(&come)) {
    }
  long more = status_mb("VmRSS:") - before;
  for (int i = 0; i < kThreads; i++) sem_post(&go);
  for (int i = 0; i < kThreads; i++) CHECK(pthread_join(t[i], NULL) == 0 && in_ram[i] == expected);
  return more;
}

static void all(void) {
  CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  long first = grows_by(2 * kMB, 1);
  CHECK(first >= kThreads && first < 2 * kThreads + 40);
  CHECK(grows_by(2 * kMB, 1) < 2 * kThreads + 8);  // some are the same stacks
  for (int i = 0; i < 20; i++) grows_by(2 * kMB, 1);
  CHECK(munlockall() == 0);
  CHECK(grows_by(3 * kMB, 0) < 8);
  CHECK(mlockall(MCL_FUTURE) == 0);
  CHECK(grows_by(4 * kMB, 1) < 4 * kThreads + 8);  // a size of its own: libc uses stacks again as they are
}

// A call that fails changes nothing.
static void failing(void) {
  struct rlimit page = {4096, 4096};
  CHECK(mlockall(MCL_FUTURE) == 0);
  CHECK(mlockall(99) == -1 && errno == EINVAL);
  CHECK(grows_by(3 * kMB, 1) < 3 * kThreads + 40);
  CHECK(munlockall() == 0);
  CHECK(setrlimit(RLIMIT_MEMLOCK, &page) == 0 && (geteuid() != 0 || setuid(65534) == 0));
  CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == -1);
  CHECK(grows_by(4 * kMB, 0) < 8);
}

static void on_fault(void) {
  CHECK(mlockall(MCL_FUTURE | MCL_ONFAULT) == 0);
  CHECK(grows_by(8 * kMB, 0) < 20);
}

// Locks are not inherited.
static void forked(void) {
  CHECK(mlockall(MCL_FUTURE) == 0);
  grows_by(2 * kMB, 1);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(grows_by(3 * kMB, 0) < 20);
    CHECK(mlockall(MCL_FUTURE) == 0);
    CHECK(grows_by(4 * kMB, 1) < 4 * kThreads + 8);
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void* nothing(void* p) { return p; }
enum { kLimit = 8 * kMB };  // what most systems let a user lock
static void limited(void) {
  struct rlimit limit = {kLimit, kLimit};
  CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  CHECK(geteuid() != 0 || setuid(65534) == 0);
  CHECK(mlockall(MCL_FUTURE) == 0);
  grows_by(kMB / 4, 1);
  pthread_t t;
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, kLimit);
  CHECK(pthread_create(&t, &a, nothing, NULL) == EAGAIN);
  grows_by(kMB / 4, 1);
}

int main(void) {
  static void (*const parts[])(void) = {all, failing, on_fault, forked, limited};
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);  // a large page could be a whole stack
  int free_to = geteuid() == 0 || limit.rlim_cur == RLIM_INFINITY;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (parts[i] == limited ? limit.rlim_max < kLimit : !free_to) continue;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      parts[i]();
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) printf("part %zu: status %#x\n", i, (unsigned)status);
    CHECK(status == 0);
  }
  return 0;
}
