#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps memcached python3
. "$(dirname "$0")/../lib.sh"
need memcached
run() { # the expected exit status is that of the run on NPTL
  rm -f "$TMP/sock"
  "$@" -t 4 -s "$TMP/sock" -u root &
  job=$!
  for ((i = 0; i < 100; i++)); do [ -S "$TMP/sock" ] && break; sleep 0.1; done
  timeout 100 /usr/bin/python3 - "$TMP/sock" <<'P' || fail "the client failed"
import socket, sys, threading
bad = []
def client(k):
    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rb")
    for i in range(300):
        v = b"%d-%d" % (k, i)
        s.sendall(b"set k%d_%d 0 0 %d\r\n%s\r\n" % (k, i, len(v), v))
        if f.readline() != b"STORED\r\n": bad.append(("set", k, i))
    for i in range(300):
        s.sendall(b"get k%d_%d\r\n" % (k, i))
        f.readline(); got = f.readline(); f.readline()
        if got != b"%d-%d\r\n" % (k, i): bad.append(("get", k, i, got))
threads = [threading.Thread(target=client, args=(k,)) for k in range(24)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(bool(bad) and str(bad[:3]))
P
  kill -TERM "$(pgrep -f "memcached.* -s $TMP/sock" | tail -n 1)"
  wait $job
}
run memcached
expected=$?
for workers in 1 2 16; do
  run fiber $workers memcached
  status=$?
  [ $status = $expected ] || fail "SIGTERM: exit status $status on $workers workers, $expected on NPTL"
  made_fibers 4
done
