// SPDX-License-Identifier: MIT
// Threads hand a turn to each other for a while. Then the process ends badly. Argument: how.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int turn, over;
static void* take_turns(void* p) {
  pthread_mutex_lock(&m);
  while (!over) {
    while (turn != (int)(long)p && !over) pthread_cond_wait(&c, &m);
    turn = !turn;
    pthread_cond_broadcast(&c);
  }
  pthread_mutex_unlock(&m);
  return 0;
}
__attribute__((noinline)) static void breaks(const char* how) {
  static volatile int zero;
  if (!strcmp(how, "segv")) *(volatile int*)8 = 1;
  if (!strcmp(how, "abort")) abort();
  if (!strcmp(how, "fpe")) raise(SIGFPE);
  if (!strcmp(how, "ill")) __builtin_trap();
  if (!strcmp(how, "deadlock")) {
    pthread_mutex_lock(&m);
    over = 1;
    pthread_cond_broadcast(&c);
    pthread_mutex_lock(&m);
  }
  if (!strcmp(how, "waits")) pause();
  zero++;
}
static void* ends(void* how) {
  usleep(30000);
  breaks(how);
  return 0;
}
int main(int argc, char** argv) {
  pthread_t t[3];
  for (long i = 0; i < 2; i++) pthread_create(&t[i], 0, take_turns, (void*)i);
  pthread_setname_np(t[0], "zero");
  pthread_setname_np(t[1], "one");
  pthread_create(&t[2], 0, ends, argc > 1 ? argv[1] : "");
  pthread_setname_np(t[2], "ends");
  puts("ready");
  fflush(stdout);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  return 0;
}
