#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# SIGTERM, SIGINT, SIGKILL, SIGHUP and SIGALRM end a process whose threads are all parked.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/parked" "$(dirname "$0")/../src/parked.c" || fail "gcc failed"
for signal in TERM INT KILL HUP ALRM; do
  for workers in 1 2 16; do
    # A shell's background jobs ignore SIGINT, and their children would inherit that.
    mkfifo "$TMP/fifo"
    env --default-signal=INT LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers "$TMP/parked" >"$TMP/fifo" &
    read -r line <"$TMP/fifo"
    kill -$signal $!
    wait $!
    status=$?
    [ $status = $((128 + $(kill -l $signal))) ] || fail "SIG$signal on $workers workers: status $status"
    rm "$TMP/fifo"
  done
done
