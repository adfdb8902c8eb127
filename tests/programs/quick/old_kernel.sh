#!/bin/bash
# SPDX-License-Identifier: MIT
# System calls that are newer than Linux 5.10, or that some sandbox refuses, are missing: each alone and all at once, refused with ENOSYS
# and with EPERM, and as Linux 5.10 refuses them. The results are the same as on NPTL, which lacks the calls as well.
# packages: gcc
. "$(dirname "$0")/../lib.sh"
ulimit -c 0
for program in old_kernel old_kernel_work; do
  gcc -O2 -w -pthread -o "$TMP/$program" "$(dirname "$0")/../src/$program.c" || fail "gcc failed"
done
"$TMP/old_kernel" 510 all -- true || skip "no filters of system calls here"
names=(guard populate epoll_pwait2 membarrier nowait io_uring clone3 close_range rseq perf_event_open cancel_on_set timerfd pidfd timer)
under() { # answer, names
  local answer=$1 expected got workers
  shift
  timeout -k 5 100 "$TMP/old_kernel" "$answer" "$@" -- "$TMP/old_kernel_work" >"$TMP/nptl"
  expected=$?
  for workers in 1 2 16; do
    LD_PRELOAD=$LIBRARY FIBERTHREAD_WORKERS=$workers timeout -k 5 100 "$TMP/old_kernel" "$answer" "$@" -- "$TMP/old_kernel_work" >"$TMP/fiber" 2>"$TMP/err"
    got=$?
    diff "$TMP/nptl" "$TMP/fiber" || fail "$answer to $* on $workers workers: differs; $(tail -n 5 "$TMP/err")"
    [ $got = $expected ] || fail "$answer to $* on $workers workers: status $got, $expected on NPTL; $(tail -n 5 "$TMP/err")"
  done
}
for name in "${names[@]}"; do
  under ENOSYS "$name"
  under EPERM "$name"
done
under ENOSYS "${names[@]}"
under EPERM $(printf '%s\n' "${names[@]}" | grep -v clone3)  # libc makes no threads when clone3 gives EPERM
under 510 "${names[@]}"
# The library does not even try these calls where there is a filter, or unless a variable asks for them.
under KILL io_uring perf_event_open

# Calls that wait, where only poll() tells what is ready.
for program in io_connect io_corners; do
  gcc -O2 -w -pthread -o "$TMP/$program" "$(dirname "$0")/../../preloaded/$program.c" || fail "gcc failed"
  "$TMP/old_kernel" 510 all -- timeout -k 5 200 "$TMP/$program" >"$TMP/nptl" || fail "$program on NPTL: status $?"
  LD_PRELOAD=$LIBRARY "$TMP/old_kernel" 510 all -- timeout -k 5 200 "$TMP/$program" >"$TMP/fiber" || fail "$program: status $?: $(tail -n 2 "$TMP/fiber")"
  diff "$TMP/nptl" "$TMP/fiber" || fail "$program differs"
done

# Guards are mappings then, and more threads than the kernel allows mappings go without.
gcc -O2 -w -pthread -o "$TMP/million" "$(dirname "$0")/../../preloaded/million.c" || fail "gcc failed"
"$TMP/old_kernel" 510 guard -- env LD_PRELOAD="$LIBRARY" timeout -k 5 100 "$TMP/million" 80000 >"$TMP/out" || fail "80,000 threads: status $?: $(tail -n 2 "$TMP/out")"

# Threads are fibers all the same.
doctor=$BUILD/fiberthread
"$TMP/old_kernel" ENOSYS "${names[@]}" -- env FIBERTHREAD_STATS=1 LD_PRELOAD="$LIBRARY" "$TMP/old_kernel_work" 2>&1 | grep -q '^fiberthread: fibers=[0-9]\{3\}' ||
  fail "threads are no fibers without these calls"

# doctor names each missing call and what its lack costs, and no call that is there.
says() { # answer, name, what doctor says
  "$TMP/old_kernel" "$1" "$2" -- "$doctor" doctor >"$TMP/doctor" || fail "doctor without $2: status $?: $(cat "$TMP/doctor")"
  grep -q "^  -    $3.*: .*$4" "$TMP/doctor" || fail "doctor says nothing of $2: $(cat "$TMP/doctor")"
}
for answer in ENOSYS EPERM; do
  says $answer guard 'guard pages without mappings' 'max_map_count'
  says $answer populate 'MADV_POPULATE_WRITE' 'page faults'
  says $answer epoll_pwait2 'epoll_pwait2' 'two calls'
  says $answer membarrier 'membarrier' 'barrier of their own'
  says $answer nowait 'RWF_NOWAIT for pipes' 'poll()'
  says $answer io_uring 'io_uring' 'connect()'
  says $answer perf_event_open 'perf events' 'FIBERTHREAD_PREEMPT_US'
  says $answer cancel_on_set 'timers that are cancelled when the clock is set' 'tenth of a second'
  says $answer timerfd 'timers that are cancelled when the clock is set' 'tenth of a second'
  says $answer close_range 'close_range' 'one by one'
  [ "$(uname -m)" != x86_64 ] || says $answer timer "timers of threads' CPU time" 'kernel threads'
  # The library does not use these calls, so doctor does not name them.
  for name in rseq pidfd; do
    "$TMP/old_kernel" $answer $name -- "$doctor" doctor >"$TMP/without" || fail "doctor without $name: $(cat "$TMP/without")"
  done
done
"$doctor" doctor >"$TMP/doctor"
"$TMP/old_kernel" 510 clone3 -- "$doctor" doctor >"$TMP/without"
lacks() { grep '^  -' "$1" | sed 's/takes [0-9]* ns/takes some ns/'; }
diff <(lacks "$TMP/doctor") <(lacks "$TMP/without") | grep '^>' | grep -v ' io_uring: ' && fail "doctor misses what is there"
"$TMP/old_kernel" EPERM clone3 -- "$doctor" doctor >"$TMP/doctor" && fail "doctor where libc makes no threads: $(cat "$TMP/doctor")"
exit 0
