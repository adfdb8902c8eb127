#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: g++
. "$(dirname "$0")/../lib.sh"
g++ -std=c++17 -O2 -w -pthread -o "$TMP/migration" "$(dirname "$0")/../src/migration.cpp" -ldl || fail "g++ failed"
"$TMP/migration" >"$TMP/nptl.out" || fail "on NPTL: status $?"
for workers in 2 4 16; do
  # On a busy machine a worker that has the CPU may run all threads many times before another worker can steal any.
  moves=0
  for ((run = 0; run < 20 && moves < 500; run++)); do
    fiber $workers "$TMP/migration" >"$TMP/fiber.out" 2>"$TMP/err" || fail "on $workers workers: status $? $(cat "$TMP/err")"
    cmp "$TMP/nptl.out" "$TMP/fiber.out" || exit 1
    moves=$((moves + $(sed -n 's/^moves=//p' "$TMP/stderr")))
  done
  [ $moves -ge 500 ] || fail "only $moves moves between kernel threads on $workers workers"
done
