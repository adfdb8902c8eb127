#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# A process that has a filter of system calls from its start, as services do, is not ended by a call that only the library makes.
. "$(dirname "$0")/../lib.sh"
ulimit -c 0
program="$TMP/service_filter"
gcc -O2 -w -pthread -o "$program" "$(dirname "$0")/../src/service_filter.c" || fail "gcc failed"
for workers in 1 2 16; do
  out=$("$program" env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers timeout -s KILL 60 "$program" threads 2>&1)
  status=$?
  [ $status = 77 ] && skip "the kernel sets no filter"
  [ "$status $out" = "0 200 threads ran" ] || fail "$workers workers: status $status: $out"
done
