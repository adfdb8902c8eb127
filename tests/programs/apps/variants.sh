#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++ make
# Builds the library with DEBUG=1, and with other defaults by DEFINES. Each build works as its settings say.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
src="$top/tests/programs/src"
gcc -O1 -w -pthread -o "$TMP/many" "$src/many.c" && gcc -O1 -w -pthread -o "$TMP/traced" "$src/traced.c" || fail "gcc failed"
cat >"$TMP/size.c" <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
static void* own(void* p) {
  pthread_attr_t a;
  size_t size;
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getstacksize(&a, &size);
  printf("%zu\n", size);
  return p;
}
int main() {
  pthread_t t;
  pthread_create(&t, NULL, own, NULL);
  return pthread_join(t, NULL);
}
C
gcc -w -pthread -o "$TMP/size" "$TMP/size.c" || fail "gcc failed"
build() { # DIRECTORY VARIABLE…
  make -C "$top" MAKELEVEL=1 -j2 "BUILD=$TMP/$1" "${@:2}" all >"$TMP/log" 2>&1 || fail "make ${*:2}: $(tail -n 20 "$TMP/log")"
  LIBRARY="$TMP/$1/libfiberthread.so"
}
works() {
  LD_PRELOAD="$LIBRARY" timeout -k 5 200 "$TMP/many" 10000 65536 >"$TMP/out" 2>"$TMP/err" || fail "$1: many: status $?: $(cat "$TMP/err")"
  [ "$(cat "$TMP/out")" = "$(printf '10000 1\n65')" ] || fail "$1: many: $(cat "$TMP/out")"
  for workers in "" 1 16; do
    env ${workers:+FIBERTHREAD_WORKERS=$workers} LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=json timeout -k 5 200 "$TMP/traced" 2>"$TMP/err" || fail "$1: traced: status $?: $(cat "$TMP/err")"
    grep -q "\"slots\":${workers:-${2:-[1-9]}}" "$TMP/err" || fail "$1: the workers: $(cat "$TMP/err")"
  done
}
build defaults DEFINES='-DFIBERTHREAD_DEFAULT_WORKERS=3 -DFIBERTHREAD_DEFAULT_STACK_SIZE=262144 -DFIBERTHREAD_QUEUE_SIZE=64'
works defaults 3
stack() { # LEAST: the stack must have that size, or a little more
  local size
  size=$(LD_PRELOAD="$LIBRARY" "$TMP/size")
  [ "$size" -ge $1 ] && [ "$size" -lt $(($1 * 2)) ] || fail "the stack's size is $size, not $1"
}
stack 262144
# The variable overrides the build's default.
FIBERTHREAD_STACK_SIZE=1048576 stack 1048576
# Positions in the queue wrap, so its size must be a power of two.
g++ -std=c++20 -I"$top" -DFIBERTHREAD_QUEUE_SIZE=100 -fsyntax-only -x c++ "$top/sched/queue.h" 2>"$TMP/err" && fail "a queue of 100 is taken"
grep -q 'power of two' "$TMP/err" || fail "a queue of 100: $(cat "$TMP/err")"
build debug DEBUG=1
works debug
exit 0
