#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps mariadb-server mariadb-client
. "$(dirname "$0")/../lib.sh"
need mariadbd
data=$TMP/data sock=$TMP/sock
mariadb-install-db --no-defaults --user=root --datadir="$data" --auth-root-authentication-method=normal >/dev/null 2>&1 || fail "no database"
trap 'pkill -9 -f "socket=$sock"' EXIT
for workers in 2 16; do
  fiber $workers mariadbd --no-defaults --user=root --datadir="$data" --socket="$sock" --skip-networking --max-connections=200 2>"$TMP/log" &
  job=$!
  sql() { timeout 60 mariadb --no-defaults -u root -S "$sock" -N "$@"; }
  for ((i = 0; i < 200; i++)); do sql -e 'select 1' >/dev/null 2>&1 && break; sleep 0.1; done
  timeout 150 mariadb-slap --no-defaults -u root -S "$sock" --auto-generate-sql --auto-generate-sql-load-type=mixed --concurrency=100 \
    --number-of-queries=3000 -s >/dev/null || fail "100 connections: status $?"
  got=$(sql -e 'create or replace database d; use d; create table t (i int primary key, v varchar(20));
    insert into t select seq, concat("v", seq) from seq_1_to_2000; select count(*), sum(i), max(v) from t; select sleep(0.05);')
  [ "$got" = "$(printf '2000\t2001000\tv999\n0')" ] || fail "answer: $got"
  sql -e 'select sleep(1000)' >/dev/null 2>&1 &
  sleeper=$!
  for ((i = 0; i < 100; i++)); do id=$(sql -e "select id from information_schema.processlist where info like 'select sleep(1000)'"); [ -n "$id" ] && break; sleep 0.1; done
  sql -e "kill query $id"
  wait $sleeper
  if [ $workers = 2 ]; then mariadb-admin --no-defaults -u root -S "$sock" shutdown; else kill -TERM "$(pgrep -f "mariadbd.*socket=$sock" | tail -n 1)"; fi
  wait $job
  [ $? = 0 ] || fail "exit status $?: $(tail -n 5 "$TMP/log")"
  made_fibers 100
done
