// SPDX-License-Identifier: MIT
// Forks while a thread that was preempted inside malloc has its lock, and the CPUs are with threads that are born and end: fork
// waits for that lock, so what those threads need must not wait for fork. The child uses all of it.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop, made;

// Long under the lock: a heap of many holes to be walked.
static void* walks_heap(void* p) {
  while (!stop) malloc_trim(0);
  return NULL;
}
static void* ends(void* p) {
  free(malloc(100));
  made--;
  return NULL;
}
// Of two sizes in turn, so that no worker can keep all the stacks that it needs to itself.
static void* makes_threads(void* p) {
  for (int i = 0; !stop; i++) {
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, i % 3 ? 64 << 10 : 512 << 10);
    pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
    pthread_t t;
    if (made < 200 && pthread_create(&t, &a, ends, NULL) == 0) made++;
    else usleep(100);
    pthread_attr_destroy(&a);
  }
  return NULL;
}
static void* adds(void* p) {
  char* m = malloc(2000);
  memset(m, 1, 2000);
  atomic_fetch_add((atomic_int*)p, m[1999]);
  free(m);
  return NULL;
}
static int child(void) {
  atomic_int n = 0;
  for (int round = 0; round < 3; round++) {
    pthread_t t[20];
    for (int i = 0; i < 20; i++) {
      pthread_attr_t a;
      pthread_attr_init(&a);
      pthread_attr_setstacksize(&a, i % 3 == 0 ? 64 << 10 : i % 3 == 1 ? 512 << 10 : 128 << 10);
      pthread_attr_setguardsize(&a, i % 2 ? 4096 : 16384);
      if (pthread_create(&t[i], &a, adds, &n) != 0) return 1;
    }
    for (int i = 0; i < 20; i++) pthread_join(t[i], NULL);
  }
  return n == 60 ? 7 : 2;
}

int main() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  // Chunks of a page and more with something between: each is looked at when the heap is trimmed.
  enum { kHoles = 4000 };
  static void* kept[kHoles];
  static void* hole[kHoles];
  for (int i = 0; i < kHoles; i++) hole[i] = malloc(13000), kept[i] = malloc(40);
  for (int i = 0; i < kHoles; i++) free(hole[i]);
  pthread_t t[6];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, walks_heap, NULL);
  for (int i = 2; i < 6; i++) pthread_create(&t[i], NULL, makes_threads, NULL);
  int right = 0;
  for (int i = 0; i < 40; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(100);
      _exit(child());
    }
    int status;
    if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7) right++;
    else printf("child %#x\n", status);
  }
  stop = 1;
  for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
  while (made) usleep(100);
  for (int i = 0; i < kHoles; i++) free(kept[i]);
  printf("%d children\n", right);
  return 0;
}
