#!/bin/bash
# SPDX-License-Identifier: MIT
# Where each switch asks the kernel to set the thread pointer, programs give the same results, also under filters that refuse this system
# call. If the library could not see that such a filter was set, a line says so.
# packages: gcc
. "$(dirname "$0")/../lib.sh"
[ "$(uname -m)" = x86_64 ] || skip "other processors have nothing like it"
ulimit -c 0
src=$(dirname "$0")/../src
gcc -O2 -Wall -Wextra -shared -fPIC -o "$TMP/no_fsgsbase.so" "$src/no_fsgsbase.c" || fail "gcc failed"
gcc -O2 -w -pthread -o "$TMP/raw_filter" "$src/raw_filter.c" || fail "gcc failed"
ours=$LIBRARY
LIBRARY="$TMP/no_fsgsbase.so $ours"
LD_PRELOAD=$TMP/no_fsgsbase.so "$BUILD/fiberthread" doctor | grep -q '^  -    FSGSBASE' || fail "doctor says nothing of it"
for program in filter_own filter_traps own_thread process_fork signals_stack signals_unwind tls; do
  compare 1 "$BUILD/tests/preloaded/$program"
done
compare 0 "$BUILD/tests/preloaded/process_exec" # none of its processes lives to print statistics

# If the filter comes before the first thread, threads are NPTL's.
LD_PRELOAD=$LIBRARY FIBERTHREAD_VERBOSE=1 "$TMP/raw_filter" before >"$TMP/out" 2>"$TMP/err" || fail "filter before the first thread: status $?"
grep -q '^joined, 6$' "$TMP/out" && grep -q "^fiberthread: threads are NPTL's: .*arch_prctl" "$TMP/err" || fail "filter before the first thread: $(cat "$TMP/out" "$TMP/err")"
# If it comes later, no thread could go on, and the process ends.
LD_PRELOAD=$LIBRARY timeout -k 5 60 "$TMP/raw_filter" after >"$TMP/out" 2>"$TMP/err"
status=$?
[ $status -gt 128 ] && grep -q '^fiberthread: .*arch_prctl' "$TMP/err" || fail "filter among threads: status $status: $(cat "$TMP/out" "$TMP/err")"
# Where the switch needs no system call, such a filter has no effect.
! grep -q fsgsbase /proc/cpuinfo || [ "$(LD_PRELOAD=$ours "$TMP/raw_filter" after)" = 'joined, 6' ] || fail "filter, and a switch without system call"
