#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64
# A deadlock is reported once, with each fiber's wait and the cycle, and no thread wakes up afterwards. There is no report for programs that
# wait for anything other than their own threads.
. "$(dirname "$0")/../lib.sh"
ulimit -c 0
program="$TMP/deadlock" no_deadlock="$TMP/no_deadlock"
for name in deadlock no_deadlock partial_deadlock; do
  gcc -O2 -g -w -pthread -o "$TMP/$name" "$(dirname "$0")/../src/$name.c" || fail "gcc failed"
done

# Prints the context switches of all threads of a process so far.
switches() { cat /proc/"$1"/task/*/status 2>/dev/null | awk '/ctxt_switches/ { n += $2 } END { print n }'; }

reported() { # CASE WORKERS
  local log="$TMP/$1.$2" pid line i before quiet=
  : >"$log.err"
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS="$2" "$program" "$1" >"$log.out" 2>"$log.err" &
  pid=$!
  for ((i = 0; i < 300; i++)); do # the limit only finds hangs
    grep -q '^fiberthread: .*cycle: .*' "$log.err" && break
    sleep 0.05
  done
  for ((i = 0; i < 20; i++)); do
    before=$(switches $pid)
    sleep 0.3
    [ "$before" = "$(switches $pid)" ] && quiet=1 && break
  done
  kill -KILL $pid 2>/dev/null || fail "$1 on $2 workers: it has ended: $(cat "$log.err")"
  wait $pid 2>/dev/null
  [ "$(grep -c ': deadlock: ' "$log.err")" = 1 ] || fail "$1 on $2 workers: not one report: $(cat "$log.err")"
  [ -s "$log.out" ] || fail "$1 on $2 workers: it does not say what to expect"
  while read -r line; do
    grep -qF -- "$line" "$log.err" || fail "$1 on $2 workers: no \"$line\" in: $(cat "$log.err")"
  done <"$log.out"
  grep -v '^fiberthread: ' "$log.err" && fail "$1 on $2 workers: lines that are not ours"
  grep -q 'waits for .*, for [0-9]*\.[0-9][0-9][0-9] s ([a-z/_]*\.cpp:[0-9]*)$' "$log.err" || fail "$1 on $2 workers: no time or place: $(cat "$log.err")"
  [ $quiet ] || fail "$1 on $2 workers: it wakes up again and again"
}

silent() { # CASE WORKERS, 0: on NPTL
  local log="$TMP/no.$1.$2" status preload="$LIBRARY"
  [ "$2" = 0 ] && preload=
  env LD_PRELOAD="$preload" FIBERTHREAD_WORKERS="$2" timeout -s KILL 60 "$no_deadlock" "$1" >/dev/null 2>"$log.err"
  status=$?
  [ $status = 0 ] || fail "$1 on $2 workers: status $status: $(cat "$log.err")"
  grep ': deadlock: ' "$log.err" && fail "$1 on $2 workers: $(cat "$log.err")"
  return 0
}

# Of some threads while others go on.
partial() { # CASE WORKERS
  local log="$TMP/partial.$1.$2" line
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS="$2" timeout -s KILL 60 "$TMP/partial_deadlock" "$1" >"$log.out" 2>"$log.err" ||
    fail "$1 on $2 workers: status $?: $(cat "$log.err")"
  if [ ! -s "$log.out" ]; then
    [ ! -s "$log.err" ] || fail "$1 on $2 workers: a false alarm: $(cat "$log.err")"
    return
  fi
  [ "$(grep -c ': deadlock: these fibers wait for each other' "$log.err")" = 1 ] || fail "$1 on $2 workers: not one report: $(cat "$log.err")"
  while read -r line; do
    grep -qF -- "$line" "$log.err" || fail "$1 on $2 workers: no \"$line\" in: $(cat "$log.err")"
  done <"$log.out"
  grep -q '^fiberthread: *#[0-9].* \(takes_two\|locks_twice\|writes\|needs_lock\|waits_for_cond\|computes\)' "$log.err" || fail "$1 on $2 workers: no stacks: $(cat "$log.err")"
}

jobs=()
for name in $("$TMP/partial_deadlock"); do
  for workers in 1 2 16; do partial "$name" $workers & jobs+=($!); done
done
for name in $("$program"); do
  for workers in 1 2 16; do reported "$name" $workers & jobs+=($!); done
done
for name in $("$no_deadlock"); do
  for workers in 0 1 2 16; do silent "$name" $workers & jobs+=($!); done
done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
partial computed 2 || failed=1
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEADLOCK=abort timeout -s KILL 60 "$TMP/partial_deadlock" mutexes >/dev/null 2>"$TMP/err"
[ $? = 134 ] && grep -q takes_two "$TMP/err" || fail "FIBERTHREAD_DEADLOCK=abort and some threads: $(cat "$TMP/err")"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEADLOCK=off timeout -s KILL 60 "$TMP/partial_deadlock" mutexes >/dev/null 2>"$TMP/err"
[ -s "$TMP/err" ] && fail "FIBERTHREAD_DEADLOCK=off: $(cat "$TMP/err")"
[ $failed = 0 ] || exit 1

# The report names both locks, and where each fiber waits.
line=$(grep -n 'pthread_mutex_lock(&m\[(i + 1) % n\])' "$(dirname "$0")/../src/deadlock.c" | cut -d: -f1)
for at in m m+40; do grep -qE "^fiberthread:     0x[0-9a-f]+ is ${at/+/\\+}$" "$TMP/two.2.err" || fail "no name of $at: $(cat "$TMP/two.2.err")"; done
[ "$(grep -cE "^fiberthread:     #[0-9] 0x[0-9a-f]+ in_cycle at .*deadlock\.c:$line$" "$TMP/two.2.err")" = 2 ] || fail "no places: $(cat "$TMP/two.2.err")"
# Without the launcher, the report has no stacks.
cp "$LIBRARY" "$TMP/libfiberthread.so"
env LD_PRELOAD="$TMP/libfiberthread.so" FIBERTHREAD_DEADLOCK=abort timeout -s KILL 200 "$program" two >"$TMP/out" 2>"$TMP/err"
while read -r line; do grep -qF -- "$line" "$TMP/err" || fail "without the launcher: no \"$line\" in: $(cat "$TMP/err")"; done <"$TMP/out"
grep -q '#0' "$TMP/err" && fail "stacks without the launcher?"

env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEADLOCK=abort timeout -s KILL 200 "$program" two >"$TMP/out" 2>"$TMP/err"
[ $? = 134 ] || fail "not ended by SIGABRT: $(cat "$TMP/err")"
grep -qF -- "$(head -n 1 "$TMP/out")" "$TMP/err" || fail "no report before SIGABRT: $(cat "$TMP/err")"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEADLOCK=off timeout -s KILL 1 "$program" two >/dev/null 2>"$TMP/err"
[ $? = 137 ] || fail "off: it has ended"
[ -s "$TMP/err" ] && fail "off: $(cat "$TMP/err")"
# If no process reads stderr, the program goes on waiting, as it would without the library.
env LD_PRELOAD="$LIBRARY" timeout -s KILL 1 "$program" two 2>&1 >/dev/null | true
[ "${PIPESTATUS[0]}" = 137 ] || fail "it does not outlive its stderr"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEADLOCK=maybe "$program" >/dev/null 2>"$TMP/err"
[ "$(cat "$TMP/err")" = "fiberthread: FIBERTHREAD_DEADLOCK=maybe is none of report, abort, off (nearest: abort); ignored" ] || fail "a bad value: $(cat "$TMP/err")"
exit 0
