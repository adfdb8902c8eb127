#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# A server with a thread for each connection has storms of connections, clients that are killed, and too few descriptors. It runs in turn on
# 1, 2 and 16 workers, and under FIBERTHREAD_CHAOS, for SERVER_SOAK_SECONDS in all ("make soak": 300).
. "$(dirname "$0")/../lib.sh"
seconds=${SERVER_SOAK_SECONDS:-4}
gcc -O2 -w -pthread -o "$TMP/server_soak" "$(dirname "$0")/../src/server_soak.c" || fail "gcc failed"
seed=${SOAK_SEED:-$((RANDOM + 1))}
for how in WORKERS=1 WORKERS=2 WORKERS=16 CHAOS=$seed; do
  (
    ulimit -n 400
    # Threads' caches stay in malloc's heaps, which shrink only at their ends. Without the large blocks, a leak is seen earlier.
    exec env MALLOC_MMAP_THRESHOLD_=32768 LD_PRELOAD="$LIBRARY" FIBERTHREAD_$how "$TMP/server_soak" server >"$TMP/port" 2>"$TMP/err"
  ) &
  server=$!
  for ((i = 0; i < 200; i++)); do [ -s "$TMP/port" ] && break; sleep 0.05; done
  timeout -k 5 $((seconds + 200)) "$TMP/server_soak" clients "$(cat "$TMP/port")" $((seconds / 4)) "$seed" >"$TMP/out" 2>"$TMP/clients.err" ||
    fail "FIBERTHREAD_$how, seed $seed: status $?: $(tail -n 3 "$TMP/clients.err") $(tail -n 3 "$TMP/err") $(cat "$TMP/out")"
  echo "FIBERTHREAD_$how: $(cat "$TMP/out")"
  kill -0 $server || fail "FIBERTHREAD_$how: the server has ended: $(cat "$TMP/err")"
  kill -9 $server
  wait $server 2>/dev/null
  : >"$TMP/port"
  seed=$((seed + 1))
done
exit 0
