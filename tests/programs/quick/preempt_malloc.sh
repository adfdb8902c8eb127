#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++ libjemalloc2 libtcmalloc-minimal4|libtcmalloc-minimal4t64
# Runs tests/preloaded/preempt_stress.cpp on other allocators, loaded before or after the library.
. "$(dirname "$0")/../lib.sh"
stress=$TMP/stress
g++ -std=c++20 -O2 -w -pthread -rdynamic -o "$stress" "$(dirname "$0")/../../preloaded/preempt_stress.cpp" -ldl || fail "g++ failed"
ran=0
# Symbols are bound at the start. Else the first call of one, deep inside an allocator, may not fit on the smallest stack, here as on NPTL.
export LD_BIND_NOW=1
for name in libjemalloc.so.2 libtcmalloc_minimal.so.4; do
  malloc=$(/sbin/ldconfig -p | sed -n "s|.*x86-64.* => \(.*/$name\)|\1|p" | head -n 1)
  [ -n "$malloc" ] || continue
  ran=$((ran + 1))
  for workers in 1 2 16; do
    preload="$LIBRARY $malloc"
    [ $workers = 2 ] && preload="$malloc $LIBRARY"
    for case in malloc all; do
      env FIBERTHREAD_WORKERS=$workers FIBERTHREAD_STATS=1 timeout -k 5 100 \
        env LD_PRELOAD="$preload" "$stress" $case 100 >"$TMP/out" 2>"$TMP/err" || fail "$name, $case on $workers workers: status $? $(cat "$TMP/err")"
      grep -qx $case "$TMP/out" || fail "$name, $case on $workers workers: $(cat "$TMP/out")"
      made=$(sed -n 's/.*preemptions=\([0-9]*\).*/\1/p' "$TMP/err" | sort -n | tail -n 1)
      [ "${made:-0}" -ge 5 ] || fail "$name, $case on $workers workers: only ${made:-no} preemptions"
    done
  done
done
[ $ran -gt 0 ] || skip "neither jemalloc nor tcmalloc is installed"
