#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps python3 dnsdist pdns-recursor
# dnsdist ends by _exit, without statistics. So its kernel threads are counted.
. "$(dirname "$0")/../lib.sh"
need dnsdist
need pdns_recursor
cd "$TMP"
port=$((20000 + $$ % 20000))
{
  printf '$TTL 60\nexample.test. IN SOA ns.example.test. a.example.test. 1 60 60 60 60\n'
  printf 'example.test. IN NS ns.example.test.\nns IN A 127.0.0.1\n'
  for ((i = 0; i < 500; i++)); do echo "n$i IN A 10.0.$((i / 250)).$((i % 250))"; done
} >zone
cat >dnsdist.conf <<C
for i = 1, 3 do addLocal("127.0.0.1:$((port + 1))", {reusePort=true}) end
newServer{address="127.0.0.1:$port", sockets=4, checkName="n1.example.test."}
setKey("MXNeLFWHUe4363BBKrY06cAsH8NWNb+Se2eXU5+Bb74=")
controlSocket("127.0.0.1:$((port + 2))")
setMaxTCPClientThreads(8)
getPool(""):setCache(newPacketCache(100, {maxTTL=1}))
setSecurityPollSuffix("")
C
cat >client.py <<'P'
import random, socket, struct, sys, threading, time
address = ("127.0.0.1", int(sys.argv[1])); bad = []
def ask(s, n, id, tcp):
    name = b"".join(bytes([len(p)]) + p for p in (b"n%d" % n, b"example", b"test")) + b"\0"
    m = struct.pack(">HHHHHH", id, 0x100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)
    if tcp:
        for i in range(10): # on a busy machine dnsdist resets a connection now and then, on NPTL too
            try:
                with socket.create_connection(address, 60) as t:
                    t.sendall(struct.pack(">H", len(m)) + m); f = t.makefile("rb")
                    return f.read(struct.unpack(">H", f.read(2))[0])
            except ConnectionResetError: pass
        return b""
    for i in range(10):
        s.sendto(m, address)
        try:
            while True:
                got = s.recv(2000)
                if got[:2] == m[:2]: return got
        except TimeoutError: pass
    return b""
def right(got, n, id): return got[:2] == struct.pack(">H", id) and got[-4:] == bytes([10, 0, n // 250, n % 250])
def client(k):
    r = random.Random(k); s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4)
    for i in range(150):
        n = r.randrange(500)
        try:
            got = ask(s, n, k * 1000 + i, i % 10 == 0)
            if not right(got, n, k * 1000 + i): bad.append((k, i, n, got))
        except Exception as e: bad.append((k, i, n, e))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
for i in range(60): # until both serve
    if right(ask(s, 7, i, False), 7, i): break
    time.sleep(0.2)
threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(bool(bad) and str(bad[:3]))
P
trap 'kill -9 $(pgrep -f "dir=$TMP/sockets|$TMP/dnsdist.conf") 2>/dev/null' EXIT
clients() { timeout 150 python3 client.py $((port + 1)) || fail "clients, $1: status $?"; }
control() { timeout 60 rec_control --socket-dir="$TMP/sockets" --timeout=50 "$@"; }
console() { timeout 60 dnsdist -C "$TMP/dnsdist.conf" -c -e "$1"; }
run() {
  rm -rf sockets && mkdir sockets
  "$@" pdns_recursor --config-dir="$TMP" --socket-dir="$TMP/sockets" --local-address=127.0.0.1 --local-port=$port --threads=6 \
    --pdns-distributes-queries=no --reuseport=yes --daemon=no --dnssec=off --security-poll-suffix= --auth-zones=example.test="$TMP/zone" \
    --write-pid=no --disable-syslog >recursor.log 2>&1 &
  recursor=$!
  "$@" dnsdist --supervised -C "$TMP/dnsdist.conf" --disable-syslog >dnsdist.log 2>&1 &
  balancer=$!
  clients first
  kernel_threads=$(ls "/proc/$(pgrep -f "^dnsdist --supervised -C $TMP/dnsdist.conf" | tail -n 1)/task" | wc -l)
  control ping | sort
  control wipe-cache 'example.test$' | sed 's/[0-9]\+/N/g'
  console 'showServers()' | awk 'NR == 2 {print $4}'
  console 'getPool(""):getCache():expunge(0)'
  clients again
  console 'shutdown()' >/dev/null
  wait $balancer
  echo "dnsdist: status $?"
  control quit-nicely
  wait $recursor
  echo "recursor: status $?"
}
run env >expected
grep -qx up expected || fail "on NPTL: $(cat expected dnsdist.log)"
[ "$kernel_threads" -ge 20 ] || fail "dnsdist has only $kernel_threads threads on NPTL"
for workers in 1 2 16; do
  run env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers >got
  diff expected got || fail "output differs on $workers workers: $(tail -n 5 dnsdist.log recursor.log)"
  [ "$kernel_threads" -lt 15 ] || fail "dnsdist has $kernel_threads kernel threads on $workers workers"
done
