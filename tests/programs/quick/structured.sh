#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs the tests of nurseries, jobs and cords, except their stress tests, under chaos and with each number of workers.
. "$(dirname "$0")/../lib.sh"
# Chaos adds workers and switches, so tests of an order are left out.
some='!(*/@(stress*|a_rendezvous*|first_in*|withdraws*|preempted_task*|ready_fibers*|nested*2_workers|nested*16_workers))'
for how in "1 FIBERTHREAD_WORKERS=1" "2 FIBERTHREAD_WORKERS=2" "3 FIBERTHREAD_WORKERS=16"; do
  for test in nursery job_queue job_queue_order job_queue_memory parallel cord cord_messages; do
    # The runner waits for ever for a test that hangs.
    env FIBERTHREAD_CHAOS=$how timeout -k 5 100 "$BUILD/tests/${test}_test" --jobs=2 --filter "$some" >"$TMP/out" 2>&1 ||
      { cat "$TMP/out"; fail "$test with FIBERTHREAD_CHAOS=$how: $?"; }
  done
done
exit 0
