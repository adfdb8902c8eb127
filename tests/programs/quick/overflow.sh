#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# A stack overflow ends the program as on NPTL, and a line says which fiber it was. A program's own handler gets the signal first.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/overflow.c" <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int depth(int n) {
  volatile char frame[1000];
  frame[n % 1000] = 1;
  return n < 0 ? 0 : depth(n + 1) + frame[5];
}
static void* overflow(void* p) {
  pthread_setname_np(pthread_self(), "deep");
  stack_t ss = {malloc(65536), 0, 65536};
  sigaltstack(&ss, NULL);
  return (void*)(long)depth(0);
}
static void handler(int sig) {
  write(1, "handled\n", 8);
  _exit(3);
}
int main(int argc, char** argv) {
  struct sigaction a = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  if (argc > 1) sigaction(SIGSEGV, &a, NULL);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 * 1024);
  pthread_t t;
  pthread_create(&t, &attr, overflow, NULL);
  pthread_join(t, NULL);
  return 0;
}
C
gcc -O0 -g -w -pthread -o "$TMP/overflow" "$TMP/overflow.c" || fail "gcc failed"
for workers in 1 2 16; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers "$TMP/overflow" 2>"$TMP/err"
  [ $? = 139 ] || fail "not ended by SIGSEGV on $workers workers"
  grep -q "^fiberthread: stack overflow in fiber [0-9]* 'deep', started at 0x[0-9a-f]*, stack 0x[0-9a-f]* to 0x[0-9a-f]* ([0-9]* kB)$" "$TMP/err" || fail "report: $(cat "$TMP/err")"
  # The report has the fiber, and its stack from where it ended to where it began, without the middle.
  grep -q "^fiberthread: fiber [0-9]* 'deep', started at 0x[0-9a-f]*, runs on thread [0-9]*$" "$TMP/err" || fail "the fiber: $(cat "$TMP/err")"
  grep -qE '^fiberthread:     #0 0x[0-9a-f]+ depth at .*overflow\.c:(7|10)$' "$TMP/err" || fail "the end of its stack: $(cat "$TMP/err")"
  grep -qE '^fiberthread:     #[0-9]+ 0x[0-9a-f]+ overflow at .*overflow\.c:16$' "$TMP/err" || fail "the start of its stack: $(cat "$TMP/err")"
  grep -qE '^fiberthread:     … [0-9]+ more frames$' "$TMP/err" || fail "the middle of its stack: $(cat "$TMP/err")"
  out=$(env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers "$TMP/overflow" x 2>"$TMP/err")
  [ $? = 3 ] && [ "$out" = handled ] || fail "the program's handler was not called on $workers workers"
done
exit 0
