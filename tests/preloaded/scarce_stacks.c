// SPDX-License-Identifier: MIT
// With little address space, ended threads' stacks serve the next threads, whatever their size, and the program's own mappings. Threads that
// are made faster than they can end get EAGAIN, but all of them are made in the end.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kLimit = 800, kDetached = 5000 };  // MB
static pthread_attr_t attr;
static pthread_barrier_t all_there;
static unsigned made;

static void* nothing(void* p) { return p; }
static void* creates(void* p) {
  pthread_t t;
  while (__atomic_load_n(&made, __ATOMIC_SEQ_CST) < kDetached) {
    int e = pthread_create(&t, &attr, nothing, NULL);
    if (e == 0) __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST);
    else if (e != EAGAIN) printf("pthread_create: %s\n", strerror(e)), exit(1);
  }
  return p;
}
static void detached(void) {
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attr, 16 << 20);
  pthread_t t[2];
  for (int i = 0; i < 2; i++)
    for (int e; (e = pthread_create(&t[i], NULL, creates, NULL)) != 0;)
      if (e != EAGAIN) printf("creator: %s\n", strerror(e)), exit(1);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  puts("detached");
}

static void* waits(void* p) {
  free(malloc(1000));  // libc has something to free at the end of such a thread
  pthread_barrier_wait(&all_there);
  return p;
}
static void at_once(int n, size_t megabytes) {
  pthread_t t[100];
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_JOINABLE);
  pthread_attr_setstacksize(&attr, megabytes << 20);
  pthread_barrier_init(&all_there, NULL, (unsigned)n);
  for (int i = 0; i < n; i++) {
    // The kernel and libc may hold the stack of a joined thread for a moment.
    int e = 0;
    for (int tries = 0; tries < 1000 && (e = pthread_create(&t[i], &attr, waits, NULL)) != 0; tries++) usleep(1000);
    if (e) printf("thread %d of %d with %zu MB: %s\n", i, n, megabytes, strerror(e)), exit(1);
  }
  for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
  pthread_barrier_destroy(&all_there);
}
static void sizes(void) {
  static const struct {
    int n;
    size_t megabytes;
  } kinds[] = {{30, 16}, {60, 8}, {5, 100}, {90, 2}, {2, 250}, {35, 16}, {9, 60}};
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) at_once(kinds[i].n, kinds[i].megabytes);
  puts("all sizes");
  // What the threads have left can be mapped. libc gives it back at once, the library within a moment.
  at_once(30, 16);
  void* own = MAP_FAILED;
  for (int i = 0; i < 30000 && own == MAP_FAILED; i++) {
    own = mmap(NULL, 400 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) usleep(1000);
  }
  printf("mapped: %d\n", own != MAP_FAILED);
}

static void in_child(void (*test)(void)) {
  fflush(stdout);
  if (fork() == 0) {
    test();
    exit(0);
  }
  int status = 0;
  wait(&status);
  if (status) printf("ended with %x\n", status);
}

int main(int argc, char** argv) {
  // Each of libc's arenas would take 64 MB, and how many there are depends on the threads' luck.
  if (!getenv("MALLOC_ARENA_MAX")) {
    setenv("MALLOC_ARENA_MAX", "1", 1);
    execv("/proc/self/exe", argv);
  }
  struct rlimit limit = {(rlim_t)kLimit << 20, (rlim_t)kLimit << 20};
  if (setrlimit(RLIMIT_AS, &limit) != 0) puts("no limit");
  pthread_attr_init(&attr);
  in_child(detached);
  in_child(sizes);
  sizes();
  detached();
  // The child's parent has had threads.
  in_child(detached);
  return 0;
}
