#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs the fiber API's waits under FIBERTHREAD_CHAOS: their unit tests, in which half of the callers are foreign threads, and
# counted rounds of channels that are closed, cancelled and timed out at every point, CHANNEL_OPERATIONS on each number of workers.
. "$(dirname "$0")/../lib.sh"
seed=${SOAK_SEED:-$((RANDOM + 1))}
for workers in 1 2 16; do
  for name in mutex semaphore rw_lock wait_group once channel channel_fork select history cancel_token fiber_callers fiber_start fiber_wait channel_soak; do
    only='*/*'  # chaos changes the order in which others want things to happen
    case $name in fiber_*) only='*/@(stress|starts_race|wake_ups_are_not_lost)' ;; esac
    CHANNEL_OPERATIONS=${CHANNEL_OPERATIONS:-15000} FIBERTHREAD_CHAOS=$seed FIBERTHREAD_WORKERS=$workers \
      timeout -k 5 7200 "$BUILD/tests/${name}_test" --filter="$only" >"$TMP/out" 2>&1 ||
      fail "FIBERTHREAD_CHAOS=$seed FIBERTHREAD_WORKERS=$workers ${name}_test: status $?: $(tail -n 12 "$TMP/out")"
  done
done
exit 0
