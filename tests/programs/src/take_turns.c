// SPDX-License-Identifier: MIT
// Threads of two processes take turns by a condition variable. With an argument, two threads of one process do.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct Turns {
  pthread_mutex_t m;
  pthread_cond_t c;
  int turn;
}* turns;

static void* take(void* p) {
  for (int i = 0; i < 300; i++) {
    assert(pthread_mutex_lock(&turns->m) == 0);
    while (turns->turn % 2 != (int)(long)p) assert(pthread_cond_wait(&turns->c, &turns->m) == 0);
    turns->turn++;
    assert(pthread_cond_broadcast(&turns->c) == 0);
    assert(pthread_mutex_unlock(&turns->m) == 0);
  }
  return NULL;
}

int main(int argc, char** argv) {
  (void)argv;
  int shared = argc == 1 ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE;
  pthread_t odd, even;
  alarm(100);
  turns = mmap(NULL, sizeof *turns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t ma;
  pthread_condattr_t ca;
  pthread_mutexattr_init(&ma);
  pthread_mutexattr_setpshared(&ma, shared);
  pthread_condattr_init(&ca);
  pthread_condattr_setpshared(&ca, shared);
  pthread_mutex_init(&turns->m, &ma);
  pthread_cond_init(&turns->c, &ca);
  pid_t child = -1;
  if (argc == 1 && (child = fork()) == 0) {
    pthread_create(&odd, NULL, take, (void*)1);
    pthread_join(odd, NULL);
    _exit(0);
  }
  pthread_create(&even, NULL, take, (void*)0);
  if (child < 0) pthread_create(&odd, NULL, take, (void*)1);
  pthread_join(even, NULL);
  int status = 0;
  if (child < 0) pthread_join(odd, NULL);
  else assert(waitpid(child, &status, 0) == child && status == 0);
  printf("%d turns\n", turns->turn);
  assert(pthread_cond_destroy(&turns->c) == 0);
  return 0;
}
