#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs the tests of the fiber API on other numbers of workers, under chaos, and where threads are NPTL's.
. "$(dirname "$0")/../lib.sh"
for how in WORKERS=1 WORKERS=16 NPTL=1 SELFCHECK=fail "CHAOS=1 FIBERTHREAD_WORKERS=1" "CHAOS=2 FIBERTHREAD_WORKERS=2" "CHAOS=3 FIBERTHREAD_WORKERS=16"; do
  for test in fiber_start fiber_query fiber_wait fiber_cancel fiber_join fiber_callers cancel_token; do
    # The runner waits for ever for a test that hangs.
    env FIBERTHREAD_$how timeout -k 5 100 "$BUILD/tests/${test}_test" --jobs=2 >"$TMP/out" 2>&1 || { cat "$TMP/out"; fail "$test with FIBERTHREAD_$how: $?"; }
  done
done
