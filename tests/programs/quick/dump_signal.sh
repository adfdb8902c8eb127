#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# FIBERTHREAD_DUMP_SIGNAL: on that signal all fibers are shown, with or without a handler of the program's, before and after its first
# thread. Nothing is shown in a program that ignores or blocks the signal.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/p.c" <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static volatile int handled, spins = 1, yields;
static void handler(int sig) { handled++; }
static void* wait_there(void* p) {
  pthread_mutex_lock(&held);
  pthread_mutex_unlock(&held);
  return p;
}
static void* spin_there(void* p) {
  pthread_setname_np(pthread_self(), "spinner");
  while (spins)
    if (yields) sched_yield();
  return p;
}
int main(int argc, char** argv) {
  const char* mode = argv[1];
  struct sigaction a = {.sa_handler = handler}, old;
  sigaction(SIGUSR2, NULL, &old);
  if (old.sa_handler != SIG_DFL) return 10;  // ours is not seen
  if (strstr(mode, "handler")) sigaction(SIGUSR2, &a, NULL);
  yields = strstr(mode, "busy") != NULL;
  if (strstr(mode, "ignore")) signal(SIGUSR2, SIG_IGN);
  if (strstr(mode, "reset")) sigaction(SIGUSR2, &a, NULL), sigaction(SIGUSR2, &(struct sigaction){.sa_handler = SIG_DFL}, &old);
  if (strstr(mode, "reset") && old.sa_handler != handler) return 11;
  pthread_t t[3];
  if (!strstr(mode, "alone")) {
    pthread_mutex_lock(&held);
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, i < 2 ? wait_there : spin_there, NULL);
    usleep(20000);
    sigaction(SIGUSR2, NULL, &old);
    if (old.sa_handler != (strstr(mode, "handler") ? handler : strstr(mode, "ignore") ? SIG_IGN : SIG_DFL)) return 12;
  }
  kill(getpid(), SIGUSR2);
  char c;
  puts("sent");
  fflush(stdout);
  while (read(0, &c, 1) > 0) {}
  if (handled != (strstr(mode, "handler") != NULL)) return 13;
  // It has left no child that the program could find.
  if (waitpid(-1, NULL, WNOHANG) != -1) return 14;
  spins = 0;
  if (!strstr(mode, "alone")) {
    pthread_mutex_unlock(&held);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
  }
  return 0;
}
C
gcc -O0 -g -w -pthread -o "$TMP/p" "$TMP/p.c" || fail "gcc failed"
mkfifo "$TMP/in"
# run MODE WORKERS LIBRARY LINE: runs the program until it has printed that line, or for a limited time.
run() {
  : >"$TMP/err"
  env LD_PRELOAD="$3" FIBERTHREAD_DUMP_SIGNAL=12 FIBERTHREAD_WORKERS="$2" "$TMP/p" "$1" <"$TMP/in" >"$TMP/out" 2>"$TMP/err" &
  local pid=$! i
  exec 9>"$TMP/in"
  for ((i = 0; i < 400; i++)); do
    grep -q sent "$TMP/out" && { [ -z "$4" ] || grep -qE -- "$4" "$TMP/err"; } && break
    sleep 0.05
  done
  exec 9>&-
  wait $pid || fail "$1 on $2 workers: status $?: $(cat "$TMP/err")"
  [ -z "$4" ] || grep -qE -- "$4" "$TMP/err" || fail "$1 on $2 workers: no \"$4\": $(cat "$TMP/err")"
}
for workers in 1 2 16; do
  for mode in plain handler-busy reset; do
    run $mode $workers "$LIBRARY" "^fiberthread:     #[0-9]+ 0x[0-9a-f]+ spin_there at .*p\.c:"
    [ "$(grep -cE '^fiberthread: fiber [0-9]+, started at .*, waits for mutex .* held by fiber [0-9]+ \(main\)' "$TMP/err")" = 2 ] || fail "$mode: the waiters: $(cat "$TMP/err")"
    [ "$(grep -cE '^fiberthread:     #[0-9] 0x[0-9a-f]+ wait_there at .*p\.c:' "$TMP/err")" = 2 ] || fail "$mode: the waiters' stacks: $(cat "$TMP/err")"
    grep -q "^fiberthread: fiber [0-9]* 'spinner'" "$TMP/err" || fail "$mode: the spinner: $(cat "$TMP/err")"
    grep -qE '^fiberthread:     #[0-9]+ 0x[0-9a-f]+ main at .*p\.c:' "$TMP/err" || fail "$mode: main: $(cat "$TMP/err")"
  done
done
run alone 2 "$LIBRARY" "^fiberthread:     #[0-9]+ 0x[0-9a-f]+ main at .*p\.c:"
run alone-handler 2 "$LIBRARY" ''
run alone-reset 2 "$LIBRARY" "^fiberthread:     #[0-9]+ 0x[0-9a-f]+ main at .*p\.c:"
run ignore 2 "$LIBRARY" ''
[ -s "$TMP/err" ] && fail "ignored, and yet: $(cat "$TMP/err")"
# Without the launcher, there are only the lines, without stacks.
cp "$LIBRARY" "$TMP/libfiberthread.so"
run plain 2 "$TMP/libfiberthread.so" "^fiberthread: fiber [0-9]+ 'spinner'"
grep -q '#0' "$TMP/err" && fail "stacks without the launcher?"
for value in 9 11 32 65 x ''; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DUMP_SIGNAL=$value true 2>&1 | grep -q "^fiberthread: FIBERTHREAD_DUMP_SIGNAL=$value is .*; ignored" || fail "\"$value\" is taken"
done
exit 0
