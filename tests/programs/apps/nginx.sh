#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps nginx-light apache2-utils curl
. "$(dirname "$0")/../lib.sh"
need nginx
mkdir -p "$TMP/www" "$TMP/logs"
head -c 300000 /dev/urandom >"$TMP/www/file"
port=$((20000 + $$ % 20000))
cat >"$TMP/nginx.conf" <<C
user root;
worker_processes 2;
daemon off;
thread_pool pool threads=16;
pid $TMP/pid;
error_log $TMP/errors;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path $TMP/a; proxy_temp_path $TMP/b; fastcgi_temp_path $TMP/c; uwsgi_temp_path $TMP/d; scgi_temp_path $TMP/e;
  server { listen 127.0.0.1:$port; root $TMP/www; aio threads=pool; directio 4k; sendfile off; }
}
C
trap 'pkill -9 -f "$TMP/nginx.conf"' EXIT
for workers in 1 2 16; do
  fiber $workers nginx -p "$TMP" -c "$TMP/nginx.conf" &
  job=$!
  for ((i = 0; i < 100; i++)); do [ -s "$TMP/pid" ] && curl -s "http://127.0.0.1:$port/" >/dev/null && break; sleep 0.1; done
  ab -q -n 1000 -c 32 "http://127.0.0.1:$port/file" >"$TMP/ab" || fail "ab: status $?"
  grep -q 'Complete requests: *1000' "$TMP/ab" && grep -q 'Failed requests: *0' "$TMP/ab" || fail "$(cat "$TMP/ab")"
  curl -s "http://127.0.0.1:$port/file" | cmp - "$TMP/www/file" || fail "content differs"
  kill -HUP "$(cat "$TMP/pid")"
  sleep 0.5
  curl -s "http://127.0.0.1:$port/file" | cmp - "$TMP/www/file" || fail "content differs after a reload"
  kill -QUIT "$(cat "$TMP/pid")"
  wait $job
  [ $? = 0 ] || fail "exit status $?"
  made_fibers 16
done
