#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# Uses all primitives at once under FIBERTHREAD_CHAOS, for SOAK_SECONDS on each number of workers ("make soak": 600). With SOAK_AT_ONCE all
# numbers run at the same time: twenty-two workers on a few cores, so that the kernel also stops them at every point.
. "$(dirname "$0")/../lib.sh"
seconds=${SOAK_SECONDS:-15}
for program in soak storm; do
  gcc -O2 -w -pthread -o "$TMP/$program" "$(dirname "$0")/../src/$program.c" || fail "gcc failed"
done
chaos() {
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_CHAOS="$seed" FIBERTHREAD_WORKERS="$workers" timeout -k 5 $((seconds + 100)) "$@" >"$TMP/out.$workers" 2>"$TMP/err.$workers" ||
    fail "FIBERTHREAD_CHAOS=$seed FIBERTHREAD_WORKERS=$workers ${*##*/}: status $?: $(tail -n 3 "$TMP/err.$workers")"
}
on() {
  local workers=$1 seed=$2 left
  local end=$((SECONDS + seconds))
  chaos "$TMP/storm" "$seed"
  while ((SECONDS < end)); do
    left=$((end - SECONDS))
    chaos "$TMP/soak" $((left < 60 ? left : 60)) "$seed"
    seed=$((seed + 1))
    ((SECONDS < end)) && chaos "$TMP/storm" "$seed"
  done
  return 0
}
seed=${SOAK_SEED:-$((RANDOM + 1))}
started=()
for workers in 1 2 3 16; do
  on "$workers" "$seed" &
  started+=($!)
  [ "${SOAK_AT_ONCE:-}" ] || wait $! || exit
done
[ -z "${SOAK_AT_ONCE:-}" ] || for p in "${started[@]}"; do wait "$p" || exit; done
exit 0
