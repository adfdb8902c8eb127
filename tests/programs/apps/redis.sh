#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps redis-server redis-tools
# redis's I/O threads spin. On two workers they make progress only because fibers are preempted.
. "$(dirname "$0")/../lib.sh"
need redis-server
cd "$TMP"
sock=$TMP/redis.sock
fiber 2 redis-server --port 0 --unixsocket "$sock" --io-threads 4 --io-threads-do-reads yes --dir "$TMP" --save '' >log &
job=$!
trap 'kill -9 $job 2>/dev/null; pkill -9 -f "$sock"' EXIT
cli() { timeout 60 redis-cli -s "$sock" "$@"; }
for ((i = 0; i < 100; i++)); do cli ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done
timeout 150 redis-benchmark -s "$sock" -q -n 5000 -c 20 -P 16 -t set,get,incr >/dev/null || fail "redis-benchmark: status $?"
for ((i = 0; i < 500; i++)); do echo "SET key:$i value-$i"; done | cli >/dev/null
for ((i = 0; i < 500; i++)); do echo "GET key:$i"; done | cli >got
for ((i = 0; i < 500; i++)); do echo "value-$i"; done | cmp - got || fail "values differ"
[ "$(cli get counter:__rand_int__)" -ge 5000 ] || fail "increments were lost"
cli bgsave >/dev/null
for ((i = 0; i < 100; i++)); do cli info persistence | grep -q 'rdb_bgsave_in_progress:0' && break; sleep 0.1; done
cli info persistence | grep -q 'rdb_last_bgsave_status:ok' || fail "the save in a forked child failed"
cli flushall async >/dev/null
[ "$(cli dbsize)" = 0 ] || fail "flushall async"
cli shutdown nosave
wait $job
[ $? = 0 ] || fail "exit status $?"
made_fibers 6
