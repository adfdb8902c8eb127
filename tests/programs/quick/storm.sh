#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/storm" "$(dirname "$0")/../src/storm.c" || fail "gcc failed"
runs=${STORM_RUNS:-2}
for workers in 1 2 16; do
  for ((seed = 1; seed <= runs; seed++)); do
    fiber $workers "$TMP/storm" $seed >/dev/null || fail "storm $seed on $workers workers: status $?"
  done
done
