// SPDX-License-Identifier: MIT
// The program has more static TLS than the library's own threads have stack. Threads are fibers all the same, and each has fresh TLS of its
// own. The memory of ended threads goes back to the kernel.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kSize = 150 * 1024, kThreads = 600, kMostKernelThreads = 100 };
// The library keeps the memory of some hundred threads for the next ones.
static const long kMost = kThreads * 3L / 4 * 2 * kSize;
static __thread char first[kSize] = {1, 2, 3};
static __thread char second[kSize];
static pthread_barrier_t all_there;

static int is_new(void) {
  int wrong = first[0] != 1 || first[1] != 2 || first[2] != 3;
  for (int i = 3; i < kSize; i++) wrong |= first[i];
  for (int i = 0; i < kSize; i++) wrong |= second[i];
  return !wrong;
}

static void* uses(void* p) {
  if (!is_new()) return "spoiled";
  memset(first, 7, sizeof first);
  memset(second, 8, sizeof second);
  free(malloc(1000));  // libc has to free the thread's cache of malloc's
  pthread_barrier_wait(&all_there);
  pthread_barrier_wait(&all_there);
  for (int i = 0; i < kSize; i++)
    if (first[i] != 7 || second[i] != 8) return "not its own";
  return p;
}

static int kernel_threads(void) {
  int n = -2;  // "." and ".."
  DIR* d = opendir("/proc/self/task");
  while (d && readdir(d)) n++;
  if (d) closedir(d);
  return n;
}

static long resident(void) {
  long all, pages = 0;
  FILE* f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld %ld", &all, &pages) != 2) puts("cannot look");
  if (f) fclose(f);
  return pages * sysconf(_SC_PAGESIZE);
}

static int wrong_threads(void) {
  pthread_t t[kThreads];
  int wrong = 0;
  pthread_barrier_init(&all_there, NULL, kThreads + 1);
  for (int i = 0; i < kThreads; i++)
    if (pthread_create(&t[i], NULL, uses, NULL) != 0) puts("cannot"), exit(1);
  pthread_barrier_wait(&all_there);
  if (dlsym(RTLD_DEFAULT, "fiberthread_self") && kernel_threads() > kMostKernelThreads) puts("the threads are libc's"), wrong++;
  pthread_barrier_wait(&all_there);
  for (int i = 0; i < kThreads; i++) {
    void* r;
    pthread_join(t[i], &r);
    if (r) wrong++, puts(r);
  }
  // On a busy machine this takes a while.
  for (int i = 0; i < 300 && resident() > kMost; i++) usleep(100000);
  if (resident() > kMost) puts("the memory is kept"), wrong++;
  return wrong;
}

int main(void) {
  printf("%d wrong\n", wrong_threads());
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(100);
    _exit(wrong_threads() ? 1 : 7);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  printf("child %x\n", status);
  return 0;
}
