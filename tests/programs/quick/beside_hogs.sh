#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# Threads that are woken while others compute on all CPUs. Here they go on at once, as on NPTL. If they waited for the slices of those that
# compute, each part would take minutes of CPU time.
. "$(dirname "$0")/../lib.sh"
need gcc

# 20,000 answers from another process, beside four threads that compute.
cat >"$TMP/answers.c" <<'END'
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
enum { kHogs = 4, kAnswers = 20000 };
static void* computes(void* p) {
  unsigned x = 1;
  static __thread unsigned a[4096];
  for (;;) {
    x = x * 1664525 + 1013904223;
    a[x >> 20] += x;
  }
  return p;
}
int main(void) {
  int to[2], from[2];
  char c = 0;
  if (pipe(to) != 0 || pipe(from) != 0) return 1;
  pid_t pid = fork();
  if (pid == 0) {
    close(to[1]);
    while (read(to[0], &c, 1) == 1) c++, write(from[1], &c, 1);
    _exit(0);
  }
  for (int i = 0; i < kHogs; i++) {
    pthread_t t;
    pthread_create(&t, NULL, computes, NULL);
  }
  for (int i = 0; i < kAnswers; i++)
    if (write(to[1], &c, 1) != 1 || read(from[0], &c, 1) != 1) return 1;
  printf("%d\n", c);
  fflush(stdout);
  _exit(0);
}
END

# A thread that works under its mutex, beside seven that poll: each of these takes its own mutex and then that one, without end.
cat >"$TMP/poll.c" <<'END'
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
enum { kThreads = 8, kRounds = 20000 };
static pthread_mutex_t mutexes[kThreads];
static atomic_int over;
static void* polls(void* p) {
  while (!over) {
    pthread_mutex_lock(&mutexes[(long)p]);
    pthread_mutex_unlock(&mutexes[(long)p]);
    pthread_mutex_lock(&mutexes[0]);
    pthread_mutex_unlock(&mutexes[0]);
  }
  return p;
}
int main(void) {
  pthread_t t[kThreads];
  for (int i = 0; i < kThreads; i++) pthread_mutex_init(&mutexes[i], NULL);
  for (long i = 1; i < kThreads; i++) pthread_create(&t[i], NULL, polls, (void*)i);
  unsigned sum = 0;
  for (int i = 0; i < kRounds; i++) {
    pthread_mutex_lock(&mutexes[0]);
    for (volatile int k = 0; k < 3000; k++) {
    }
    sum += i;
    pthread_mutex_unlock(&mutexes[0]);
  }
  over = 1;
  for (int i = 1; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%u\n", sum);
  return 0;
}
END

for part in answers poll; do
  gcc -O2 -pthread -o "$TMP/$part" "$TMP/$part.c" || fail "gcc failed"
  expected=$("$TMP/$part")
  for workers in 1 2; do
    answer=$(
      ulimit -t 15
      fiber $workers "$TMP/$part"
    )
    [ "$answer" = "$expected" ] || fail "$part on $workers workers: '$answer' instead of $expected, or more than 15 s of CPU time"
  done
done
