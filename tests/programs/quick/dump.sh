#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# `fiberthread dump` shows all fibers of a process and of its core: where they wait, for what, and its owner.
. "$(dirname "$0")/../lib.sh"
dump="$BUILD/fiberthread dump"
program="$TMP/inside"
waiters=500
gcc -O1 -g -w -pthread -o "$program" "$(dirname "$0")/../src/inside.c" || fail "gcc failed"
line() { grep -n "$1" "$(dirname "$0")/../src/inside.c" | head -n 1 | cut -d: -f1; }

# check FILE TEXT…: checks a dump, of a process or a core.
check() {
  local file=$1 main lock
  main=$(sed -n 's/^fiber \([0-9]*\) (main).*/\1/p' "$file")
  has() { grep -qE -- "$1" "$file" || fail "$2: no \"$1\" in $(head -n 60 "$file")"; }
  [ "$(grep -c '^fiber ' "$file")" = $((waiters + 4)) ] || fail "$2: $(grep -c '^fiber ' "$file") fibers"
  has "^fiber [0-9]+ 'locker', started at 0x[0-9a-f]+, waits for mutex 0x[0-9a-f]+ held by fiber $main \(main\), for .*[0-9]\.[0-9]{3} s \(sync/fiber_mutex\.cpp:[0-9]+\)" "$2"
  has "^    0x[0-9a-f]* is lock_a$" "$2"
  has "^fiber $main \(main\) waits for descriptor 0, for " "$2"
  has "^    #[0-9] 0x[0-9a-f]* locker at .*inside\.c:$(line 'pthread_mutex_lock(&lock_a);$')" "$2"
  [ "$(grep -c '^    0x[0-9a-f]* is never$' "$file")" = $waiters ] || fail "$2: not all wait for the condition"
  [ "$(grep -c "^    #[0-9] 0x[0-9a-f]* wait_for_never at .*inside\.c:$(line 'wait_for_never(depth - 1)')$" "$file")" = $((3 * waiters)) ] || fail "$2: the waiters' frames: $(head -n 40 "$file")"
  [ "$(grep -c "^    #[0-9] 0x[0-9a-f]* waiter at .*inside\.c:$(line 'wait_for_never(3)')$" "$file")" = $waiters ] || fail "$2: not all stacks go to the waiters' start"
  # Of the running fibers, one computes, and one sleeps in the kernel.
  has "^fiber [0-9]+ 'reader', started at 0x[0-9a-f]+, runs on thread [0-9]+" "$2"
  has "^    #[0-9]* 0x[0-9a-f]* read_pipe at .*inside\.c:$(line 'fgetc(f)')" "$2"
  grep -A 1 "^fiber [0-9]* 'computer'" "$file" | grep -qE '^    #0 0x[0-9a-f]* compute at .*inside\.c:' || fail "$2: the one that computes: $(grep -A 3 "'computer'" "$file")"
  has "^    #[0-9]* 0x[0-9a-f]* main at .*inside\.c:$(line 'while (read(0')" "$2"
}

for workers in 1 2 16; do
  begin $workers "$program" $waiters
  $dump $pid >"$TMP/dump" 2>"$TMP/err" || fail "$workers workers: status $?: $(cat "$TMP/err")"
  check "$TMP/dump" "process on $workers workers"
  [ "$($dump --no-stacks $pid | grep -c '^fiber')" = $((waiters + 4)) ] || fail "$workers workers: a second dump"
  $dump --most 3 $pid | grep -q "^… and $((waiters + 1)) more" || fail "--most"
  [ "$($dump --fiber $pid $pid | grep -c '^fiber ')" = 1 ] || fail "--fiber"
  kill -0 $pid || fail "$workers workers: it has ended"
  # The core shows the same, where cores are made.
  if [ $workers = 2 ] && makes_cores; then
    end_by_core
    $dump "$core" >"$TMP/dump" 2>"$TMP/err" || fail "core: status $?: $(cat "$TMP/err")"
    check "$TMP/dump" core
    rm -f "$core"
  else
    end "$workers workers"
  fi
done

says() { # TEXT COMMAND…
  local text=$1 status
  shift
  "$@" >"$TMP/out" 2>"$TMP/err"
  status=$?
  [ $status = 1 ] || fail "$*: status $status"
  grep -q "$text" "$TMP/err" || fail "$*: $(cat "$TMP/err")"
}
sleep 100 &
says "does not run on fiberthread" $dump $!
kill $!
wait $! 2>/dev/null
says "there is no process" $dump $!
says "no core" $dump "$program"
says "No such file" $dump "$TMP/nothing"
$dump 2>/dev/null
[ $? = 2 ] || fail "no argument is not an error of usage"
exit 0
