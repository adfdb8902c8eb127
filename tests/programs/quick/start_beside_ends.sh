#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# The first thread becomes a fiber also while libc makes threads of its own and these end. At the start the library looks for a lock of
# libc's, and such threads hold that lock or wait for it meanwhile.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/ends.c" <<'C'
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void ends(union sigval v) {}
static void* nothing(void* p) { return p; }
int main() {
  enum { kProcesses = 60 };
  for (int i = 0; i < kProcesses; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      timer_t t;
      struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = ends};
      struct itimerspec often = {{0, 20000}, {0, 20000}};
      assert(timer_create(CLOCK_MONOTONIC, &e, &t) == 0 && timer_settime(t, 0, &often, NULL) == 0);
      usleep(i * 100);
      pthread_t thread;
      assert(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
      _exit(0);
    }
    int status;
    assert(waitpid(pid, &status, 0) == pid && status == 0);
  }
  puts("made");
}
C
gcc -O2 -w -pthread -o "$TMP/ends" "$TMP/ends.c" || fail "gcc failed"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_VERBOSE=1 timeout -k 5 200 "$TMP/ends" >"$TMP/out" 2>"$TMP/err" || fail "status $?: $(tail -n 3 "$TMP/err")"
[ "$(cat "$TMP/out")" = made ] || fail "said $(cat "$TMP/out")"
[ -s "$TMP/err" ] && fail "$(grep -c . "$TMP/err") of 60: $(sort "$TMP/err" | uniq -c)"
exit 0
