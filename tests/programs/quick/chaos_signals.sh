#!/bin/bash
# SPDX-License-Identifier: MIT
# The masks of kernel threads, under FIBERTHREAD_CHAOS: tests/preloaded/signals_main_tid.c gives the same output as on NPTL. Without chaos, a
# mask that comes too late is hardly ever seen.
. "$(dirname "$0")/../lib.sh"
test=$BUILD/tests/preloaded/signals_main_tid
[ -x "$test" ] || fail "make has not built $test"
"$test" >"$TMP/nptl" || fail "on NPTL: status $?"
for chaos in 1 2 3 4; do
  for workers in 1 2; do
    FIBERTHREAD_CHAOS=$chaos FIBERTHREAD_WORKERS=$workers LD_PRELOAD=$LIBRARY "$test" >"$TMP/fibers" || fail "chaos $chaos on $workers workers: status $?"
    cmp "$TMP/nptl" "$TMP/fibers" || fail "chaos $chaos on $workers workers: $(diff "$TMP/nptl" "$TMP/fibers")"
  done
done
