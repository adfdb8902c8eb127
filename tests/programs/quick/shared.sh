#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# Processes with the library and without it use the same objects. A process that is killed leaves its robust mutexes to the others.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/shared" "$(dirname "$0")/../src/shared.c" || fail "gcc failed"
export SHARED_NAME=$$
# The first argument is "plain" for NPTL, or the number of workers.
start() {
  if [ "$1" = plain ]; then timeout -k 5 100 "$TMP/shared" "$TMP/file" "${@:2}"
  else LD_PRELOAD=$LIBRARY FIBERTHREAD_WORKERS=$1 timeout -k 5 100 "$TMP/shared" "$TMP/file" "${@:2}"; fi
}
for sides in "plain plain" "1 1" "plain 1" "2 plain" "16 2" "1 plain 2" "plain 16 plain"; do
  start "${sides##* }" make "$(wc -w <<<"$sides")" || fail "$sides: make: status $?"
  started=()
  for side in $sides; do
    start $side work &
    started+=($!)
  done
  for p in "${started[@]}"; do wait $p || fail "$sides: status $?"; done
  got=$(start "${sides%% *}" check)
  [ "$got" = "0 of mutexes, 0 of rwlocks, 0 of semaphores, 3 3 left, 8 serial, 0 sum" ] || fail "$sides: $got"
done
for sides in "plain plain" "1 plain" "2 plain" "16 1" "plain 1" "plain 16" "2 2"; do
  start plain make 1
  rm -f "$TMP/held"
  owner=${sides% *}
  # Started without `start`, so that the process itself can be killed.
  if [ $owner = plain ]; then "$TMP/shared" "$TMP/file" hold >"$TMP/held" &
  else LD_PRELOAD=$LIBRARY FIBERTHREAD_WORKERS=$owner "$TMP/shared" "$TMP/file" hold >"$TMP/held" & fi
  pid=$!
  until [ -s "$TMP/held" ]; do kill -0 $pid || fail "$sides: the owner is gone"; sleep 0.05; done
  start "${sides#* }" recover >"$TMP/recovered" &
  other=$!
  sleep 0.1  # the process waits by now, or comes too late
  kill -KILL $pid
  wait $pid 2>/dev/null
  wait $other || fail "$sides: recover: status $?"
  [ "$(cat "$TMP/recovered")" = "48 had a dead owner" ] || fail "$sides: $(cat "$TMP/recovered")"
done
start plain check >/dev/null
