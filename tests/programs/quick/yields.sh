#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# A thread that computes goes on beside threads that only yield, as on NPTL.
. "$(dirname "$0")/../lib.sh"
gcc -O1 -w -pthread -o "$TMP/yields" "$(dirname "$0")/../src/yields.c" || fail "gcc failed"
"$TMP/yields" >"$TMP/nptl" || fail "NPTL: status $?"
for workers in 1 2 16; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers FIBERTHREAD_STATS=1 timeout -k 5 100 "$TMP/yields" >"$TMP/out" 2>"$TMP/stats" || fail "$workers workers: status $?"
  cmp "$TMP/nptl" "$TMP/out" || fail "$workers workers: $(cat "$TMP/out")"
done
# With one worker, each yield is a switch. Main's turns are of 4 ms of CPU time at least, and 1,024 yields come between two of them.
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=1 FIBERTHREAD_STATS=1 timeout -k 5 100 "$TMP/yields" 2>"$TMP/stats" >/dev/null
switches=$(sed -n 's/.* switches=\([0-9]*\) .*/\1/p' "$TMP/stats")
preemptions=$(sed -n 's/.* preemptions=\([0-9]*\) .*/\1/p' "$TMP/stats")
[ "$switches" -le $((2 * 1024 * (preemptions + 10))) ] || fail "too many yields: $(cat "$TMP/stats")"
# The threads that yield take turns with main. They do not go on beside it on slots of the reserve.
[ "$preemptions" -ge 10 ] || fail "they take no turns: $(cat "$TMP/stats")"
exit 0
