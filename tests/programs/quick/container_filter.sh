#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# Under the filter of system calls that container engines have by default, a program does the same as on NPTL. doctor says what is refused, a
# deadlock is reported with stacks, dump shows a process, and explore finds a failure.
. "$(dirname "$0")/../lib.sh"
ulimit -c 0
src=$(dirname "$0")/../src
for program in container_filter old_kernel_work deadlock; do
  gcc -O2 -g -w -pthread -o "$TMP/$program" "$src/$program.c" || fail "gcc failed"
done
filter=("$TMP/container_filter")
"${filter[@]}" true
[ $? = 77 ] && skip "no filters of system calls here"
timeout -k 5 100 "${filter[@]}" "$TMP/old_kernel_work" >"$TMP/nptl" || fail "on NPTL: status $?"
for workers in 1 2 16; do
  LD_PRELOAD=$LIBRARY FIBERTHREAD_WORKERS=$workers timeout -k 5 100 "${filter[@]}" "$TMP/old_kernel_work" >"$TMP/fiber" 2>"$TMP/err" ||
    fail "on $workers workers: status $?: $(tail -n 5 "$TMP/err")"
  diff "$TMP/nptl" "$TMP/fiber" || fail "on $workers workers: another output"
done

timeout -k 5 60 "${filter[@]}" "$BUILD/fiberthread" doctor >"$TMP/doctor" || fail "doctor: $(cat "$TMP/doctor")"
grep -q '^  -    io_uring: ' "$TMP/doctor" && grep -q '^  -    perf events: ' "$TMP/doctor" || fail "doctor does not say what is refused: $(cat "$TMP/doctor")"

name=$("$TMP/deadlock" | head -n 1)
LD_PRELOAD=$LIBRARY FIBERTHREAD_DEADLOCK=abort timeout -k 5 60 "${filter[@]}" "$TMP/deadlock" "$name" >/dev/null 2>"$TMP/report"
grep -q '^fiberthread: .*cycle: ' "$TMP/report" || fail "no report of a deadlock: $(cat "$TMP/report")"
grep -q '#[0-9].* in \|^fiberthread: *#[0-9]' "$TMP/report" || fail "the report has no stacks: $(cat "$TMP/report")"

gcc -g -w -pthread -o "$TMP/account" "$src/../../explore/account.c" || fail "gcc failed"
cd "$TMP" || exit
timeout -k 5 100 "${filter[@]}" "$BUILD/fiberthread" explore -n 300 ./account >"$TMP/explored" 2>&1
[ $? = 1 ] || fail "explore finds nothing: $(cat "$TMP/explored")"
