#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# FIBERTHREAD_STALL_MS: who keeps others waiting is named, with the stack at that time; and there is silence where nobody does.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -g -w -pthread -o "$TMP/stall" "$(dirname "$0")/../src/stall.c" || fail "gcc failed"

# stall MS CASE [NAME=VALUE…]
stall() {
  local limit=$1 case=$2
  shift 2
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STALL_MS=$limit FIBERTHREAD_METRICS="$TMP/m.prom" "$@" timeout -s KILL 100 "$TMP/stall" "$case" >"$TMP/out" 2>"$TMP/err" ||
    fail "$case $*: status $?: $(cat "$TMP/err")"
}
# named CASE LINE FUNCTION KIND [NAME=VALUE…]
named() {
  local case=$1 line=$2 function=$3 kind=$4
  shift 4
  stall ${LIMIT:-40} "$case" WAIT_FOR=" at " "$@"
  [ "$(grep -c 'stall: ' "$TMP/err")" = 1 ] || fail "$case $*: not one line: $(cat "$TMP/err")"
  grep -q "stall: .*$line" "$TMP/err" || fail "$case $*: no \"$line\": $(cat "$TMP/err")"
  grep -q "'one' was here:" "$TMP/err" && grep -q "#[0-9]* 0x[0-9a-f]* $function at " "$TMP/err" || fail "$case $*: no stack with $function: $(cat "$TMP/err")"
  grep -q "^fiberthread_stalls_total{kind=\"$kind\"} [1-9]" "$TMP/m.prom" || fail "$case $*: not counted: $(grep stalls "$TMP/m.prom")"
}
for workers in 1 2 16; do
  named lock-sleeps "'other' waits for mutex 0x[0-9a-f]* for 0.[0-9]* s; it is held by fiber [0-9]* 'one'" sleeps_for_long lock FIBERTHREAD_WORKERS=$workers
done
# On a busy machine, a thread may well be without a CPU for 40 ms. If it computed for 200 ms only, as in other cases, it could end before it is asked
# where it is.
LIMIT=400 named stuck "'one' runs for [0-9.]* s without a wait" computes_for_long stuck LONG_MS=2000 FIBERTHREAD_PREEMPT=0 FIBERTHREAD_WORKERS=2
# One that lacked the CPU when the watch looked first is looked at again.
LIMIT=200 named stuck "'one' runs for [0-9.]* s without a wait" computes_for_long stuck LONG_MS=5000 STOP_MS=150 FIBERTHREAD_PREEMPT=0 FIBERTHREAD_WORKERS=2
# Whichever is seen first: on a busy machine, a thread that lacks the CPU does not look as if it computed.
LIMIT=400 named lock-computes "'one'" computes_for_long "\(stuck\|lock\)" LONG_MS=2000 FIBERTHREAD_PREEMPT=0 FIBERTHREAD_WORKERS=2
# On one worker that is not preempted, the other one cannot run.
stall 40 stuck WAIT_FOR=" at " LONG_MS=2000 FIBERTHREAD_PREEMPT=0 FIBERTHREAD_WORKERS=1
grep -q "'one' was here:" "$TMP/err" && grep -q computes_for_long "$TMP/err" || fail "one worker: $(cat "$TMP/err")"

silent() { # CASE
  for workers in 1 2 16; do
    stall 2000 "$1" FIBERTHREAD_WORKERS=$workers
    [ ! -s "$TMP/err" ] || fail "$1: $(cat "$TMP/err")"
    ! grep -q '^fiberthread_stalls_total.* [1-9]' "$TMP/m.prom" || fail "$1: counted: $(grep stalls "$TMP/m.prom")"
  done
}
# A thread that sleeps in the kernel keeps nobody waiting.
for case in waits raw; do
  stall 40 $case FIBERTHREAD_WORKERS=4
  ! grep -q "stall: fiber [0-9]* 'one' runs" "$TMP/err" || fail "a wait in the kernel: $(cat "$TMP/err")"
done
silent little
silent waits
silent lock-sleeps
silent stuck
exit 0
