#!/bin/bash
# SPDX-License-Identifier: MIT
# The library learns libc's layout from a model thread. When that thread comes to another CPU meanwhile, the kernel writes into its rseq
# area. The library must not take this for the state of random numbers, or it leaves threads to libc.
# packages: gcc
. "$(dirname "$0")/../lib.sh"
need gcc
[ "$(nproc)" -gt 1 ] || skip "one CPU: nothing can move"
src=$(cd "$(dirname "$0")/../src" && pwd)
gcc -O1 -pthread -o "$TMP/take_turns" "$src/take_turns.c" || fail "the program does not compile"
gcc -O1 -shared -fPIC -o "$TMP/moving.so" "$src/moving_getrandom.c" || fail "the stand-in for getrandom() does not compile"
for i in {1..20}; do
  LD_PRELOAD="$LIBRARY:$TMP/moving.so" FIBERTHREAD_VERBOSE=1 FIBERTHREAD_STATS=1 timeout -k 5 200 "$TMP/take_turns" >"$TMP/out" 2>"$TMP/err" &&
    [ "$(cat "$TMP/out")" = "600 turns" ] || fail "start $i: $(cat "$TMP/out" "$TMP/err")"
  grep -q "NPTL" "$TMP/err" && fail "start $i: threads were not fibers: $(cat "$TMP/err")"
  grep -q "fibers=" "$TMP/err" || fail "start $i: no statistics: $(cat "$TMP/err")"
done
