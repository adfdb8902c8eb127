#!/bin/bash
# SPDX-License-Identifier: MIT
# Where the library finds at the first thread that threads must stay NPTL's, the program's handlers, their stacks, processes and cancellation
# are as they were: the output is that of a run without the library.
. "$(dirname "$0")/../lib.sh"
cd "$TMP" || exit 1
for test in foreign_threads filter_traps signals_stack signals_unwind signals_deadly signals_ignored signals_before_threads \
  signals_frames process_fork exit_ways; do
  timeout -k 5 100 "$BUILD/tests/preloaded/$test" >nptl 2>&1
  status=$?
  FIBERTHREAD_SELFCHECK=fail LD_PRELOAD="$LIBRARY" timeout -k 5 100 "$BUILD/tests/preloaded/$test" >kept 2>&1
  got=$?
  [ $got = $status ] || fail "$test: status $got, not $status"
  cmp -s nptl kept || {
    diff nptl kept | head -n 20
    fail "$test: output differs"
  }
done
