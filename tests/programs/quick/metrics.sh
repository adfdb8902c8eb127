#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# FIBERTHREAD_METRICS: the file, the sockets, the form of the text, and what the numbers say. With promtool installed, its word too.
. "$(dirname "$0")/../lib.sh"
top=$(cd "$(dirname "$0")/../../.." && pwd)
cat >"$TMP/works.c" <<'END'
// 40 threads take turns until the file "stop" exists.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int turn, stop;
static void* take_turns(void* p) {
  pthread_mutex_lock(&m);
  while (!stop) {
    while (turn != (int)(long)p && !stop) pthread_cond_wait(&c, &m);
    turn = (turn + 1) % 40;
    pthread_cond_broadcast(&c);
  }
  pthread_mutex_unlock(&m);
  return 0;
}
int main() {
  pthread_t t[40];
  for (long i = 0; i < 40; i++) pthread_create(&t[i], 0, take_turns, (void*)i);
  puts("ready");
  fflush(stdout);
  while (access("stop", F_OK)) usleep(10000);
  pthread_mutex_lock(&m);
  stop = 1;
  pthread_cond_broadcast(&c);
  pthread_mutex_unlock(&m);
  for (int i = 0; i < 40; i++) pthread_join(t[i], 0);
  return 0;
}
END
gcc -O2 -w -pthread -o "$TMP/works" "$TMP/works.c" || fail "gcc failed"
cd "$TMP"

# check FILE: fails unless the text is well formed, and the numbers agree with each other.
check() {
  python3 - "$1" <<'END' || fail "$1: $(cat "$1")"
import re, sys
types, samples = {}, {}
for line in open(sys.argv[1]):
    line = line.rstrip("\n")
    if m := re.fullmatch(r"# HELP (fiberthread_\w+) \S.*", line): continue
    if m := re.fullmatch(r"# TYPE (fiberthread_\w+) (counter|gauge|histogram)", line):
        assert m[1] not in types, line
        types[m[1]] = m[2]
        continue
    m = re.fullmatch(r'(fiberthread_\w+)(\{\w+="[^"\\]*"\})? (\d+(\.\d+)?)', line)
    assert m, line
    name = re.sub("_(bucket|sum|count)$", "", m[1]) if "delay" in m[1] else m[1]
    assert name in types, line
    assert types[name] != "counter" or name.endswith("_total"), line
    assert m[1] + (m[2] or "") not in samples, line
    samples[m[1] + (m[2] or "")] = float(m[3])
s = lambda n: samples["fiberthread_" + n]
assert s("threads_spawned_total") == 40, "spawned"
buckets = [v for n, v in samples.items() if "_bucket" in n]
assert buckets == sorted(buckets) and len(buckets) == 22 and buckets[-1] == s("scheduling_delay_seconds_count"), "histogram"
# Counted one after the other, while threads go on.
assert 0 < s("scheduling_delay_seconds_count") <= s("switches_total") * 1.5 + 1000, "switches"
assert s('parks_total{reason="cond"}') > 0 and s("workers") >= 1 and s("slots") == 2 and s("kernel_threads") >= s("workers"), "workers"
sum_of_states = sum(v for n, v in samples.items() if n.startswith("fiberthread_threads{"))
assert 0 < sum_of_states < 100, "states"
END
  ! command -v promtool >/dev/null || { promtool check metrics <"$1" >promtool 2>&1 && [ ! -s promtool ]; } || fail "promtool does not like $1: $(cat promtool)"
}
works() { # VARIABLES…
  rm -f stop out err
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=2 "$@" timeout -s KILL 100 ./works >out 2>err &
  pid=$!
  for ((i = 0; i < 1000; i++)); do grep -q ready out && return; sleep 0.01; done
  fail "$*: it does not begin: $(cat err)"
}
ends() {
  : >stop
  wait $pid || fail "status $?: $(cat err)"
  [ ! -s err ] || fail "on stderr: $(cat err)"
}
fetch() { # PATH of a unix socket, or a port; request
  python3 - "$@" <<'END'
import socket, sys
unix = not sys.argv[1].isdigit()
s = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
s.settimeout(20)
s.connect(sys.argv[1] if unix else ("127.0.0.1", int(sys.argv[1])))
s.sendall(sys.argv[2].encode())
text = b""
while part := s.recv(65536): text += part
head, _, body = text.decode().partition("\r\n\r\n")
assert "Content-Length: %d\r\n" % len(body.encode()) in head + "\r\n", head
print(head.split("\r\n")[0], file=sys.stderr)
sys.stdout.write(body)
END
}

# The file is there while the program runs, and once more at its end. There is never a half of it, and nothing beside it.
mkdir dir
works FIBERTHREAD_METRICS=dir/m.prom FIBERTHREAD_METRICS_SECONDS=1
for ((i = 0; i < 1000; i++)); do [ -s dir/m.prom ] && break; sleep 0.01; done
cp dir/m.prom first && check first
ends
check dir/m.prom
[ "$(ls dir)" = m.prom ] || fail "beside the file: $(ls dir)"
[ "$(sed -n 's/^fiberthread_switches_total //p' dir/m.prom)" -gt "$(sed -n 's/^fiberthread_switches_total //p' first)" ] || fail "not written at the end"
works "FIBERTHREAD_METRICS=$TMP/dir/%p.prom"
ends
[ "$(ls dir | wc -l)" = 2 ] || fail "%p: $(ls dir)"

# Sockets. Clients that say nothing, or too much, or hang up, keep nobody else from the answer.
works FIBERTHREAD_METRICS=unix:sock
fetch sock $'GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n' >got 2>status && grep -q '^HTTP/1.1 200' status && check got
fetch sock $'GET /favicon HTTP/1.1\r\n\r\n' >got 2>status
grep -q 404 status && grep -q '/metrics' got || fail "another path: $(cat status got)"
python3 - <<'END' || fail "bad clients"
import socket
def client(): s = socket.socket(socket.AF_UNIX); s.connect("sock"); return s
silent = client()
gone = client(); gone.sendall(b"GET /metr"); gone.close()
import time
long = client(); begin = time.time()
long.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 3000)
long.settimeout(20)
assert long.recv(20).startswith(b"HTTP/1.1 200"), "a long request"
late = client(); late.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"); late.settimeout(20)
assert late.recv(20).startswith(b"HTTP/1.1 200"), "after a client that goes"
END
# A second process may not take the place. Its own children need not, and say nothing.
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_METRICS=unix:sock python3 -c 'import threading; threading.Thread(target=print).start()' >/dev/null 2>second
grep -q 'metrics: unix:sock: it cannot be listened on' second || fail "a place that is taken: $(cat second)"
ends
[ ! -e sock ] || fail "the socket stays"
# One that is left behind by a process that was killed is taken.
works FIBERTHREAD_METRICS=unix:sock
kill -KILL $(pgrep -P $pid) 2>/dev/null; wait $pid 2>/dev/null
[ -e sock ] || fail "there is no socket to be left behind"
works FIBERTHREAD_METRICS=unix:sock
fetch sock $'GET /metrics HTTP/1.0\n\n' >got 2>status && check got
ends
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
works FIBERTHREAD_METRICS=localhost:$port
fetch $port $'GET /metrics HTTP/1.1\r\n\r\n' >got 2>status && check got
ends

# 500 threads that have used 100 kB of their stacks, and 200 of which wait for sockets. The figures are from a round that ended some time ago.
cat >"$TMP/stacks.c" <<'END'
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int stop, used, pairs[200][2];
__attribute__((noinline)) static void use() {
  char room[100 << 10];
  memset(room, 1, sizeof room);
  __asm__ volatile("" ::"r"(room) : "memory");
}
static void* waits(void* p) {
  long i = (long)p;
  use();
  __atomic_add_fetch(&used, 1, __ATOMIC_SEQ_CST);
  char byte;
  if (i < 200) return (void*)read(pairs[i][0], &byte, 1);
  pthread_mutex_lock(&m);
  while (!stop) pthread_cond_wait(&c, &m);
  pthread_mutex_unlock(&m);
  return 0;
}
int main() {
  pthread_t t[500];
  for (int i = 0; i < 200; i++) socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]);
  for (long i = 0; i < 500; i++) pthread_create(&t[i], 0, waits, (void*)i);
  while (__atomic_load_n(&used, __ATOMIC_SEQ_CST) < 500) usleep(1000);
  puts("ready");
  fflush(stdout);
  while (access("stop", F_OK)) usleep(10000);
  for (int i = 0; i < 200; i++) write(pairs[i][1], "", 1);
  pthread_mutex_lock(&m);
  stop = 1;
  pthread_cond_broadcast(&c);
  pthread_mutex_unlock(&m);
  for (int i = 0; i < 500; i++) pthread_join(t[i], 0);
  for (int i = 0; i < 200; i++) close(pairs[i][0]), close(pairs[i][1]);
  while (access("end", F_OK)) usleep(10000);
  return 0;
}
END
gcc -O1 -w -pthread -o stacks stacks.c || fail "gcc failed"
value() { sed -n "s/^fiberthread_$1 //p" got; }
# holds CONDITION: asks until it holds of the values $resident and $watched.
holds() {
  for ((i = 0; i < 400; i++)); do
    fetch sock $'GET /metrics HTTP/1.1\r\n\r\n' >got 2>status
    resident=$(value stack_resident_bytes) watched=$(value poller_descriptors)
    (($1)) && return
    sleep 0.1
  done
  fail "not $1: resident=$resident watched=$watched"
}
rm -f stop end
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=2 FIBERTHREAD_METRICS=unix:sock timeout -s KILL 100 ./stacks >out 2>err &
pid=$!
holds 'resident >= 40000000 && resident <= 100000000 && watched >= 200'
[ "$resident" -lt "$(value stack_reserved_bytes)" ] || fail "more stack is used than there is: $(cat got)"
: >stop
holds 'watched < 200 && resident < 40000000'
: >end
wait $pid || fail "stacks: status $?: $(cat err)"

# While the process has no descriptor left for a client, sysmon rests between its tries, and answers once there is one. (A try without a
# rest takes all of a CPU. A loaded machine makes the figure smaller, not larger.)
cat >full.py <<'END'
import os, resource, subprocess, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
thread = threading.Thread(target=time.sleep, args=(3,))
thread.start()
while not os.path.exists("full.sock"): time.sleep(0.01)
client = subprocess.Popen(["python3", "client.py"], env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
taken = []
try:
    while True: taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
time.sleep(1)  # the client comes meanwhile
before = time.process_time()
time.sleep(1)
assert time.process_time() - before < 0.5, time.process_time() - before
for fd in taken: os.close(fd)
assert client.wait() == 0
thread.join()
END
cat >client.py <<'END'
import socket, time
time.sleep(0.3)
s = socket.socket(socket.AF_UNIX)
s.settimeout(50)
s.connect("full.sock")
s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
assert s.recv(20).startswith(b"HTTP/1.1 200")
END
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_METRICS=unix:full.sock timeout -s KILL 100 python3 full.py >got 2>&1 || fail "without descriptors: $(cat got)"

# What cannot be had is said once, and the program goes on.
bad() { # value, message
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_METRICS="$1" FIBERTHREAD_METRICS_SECONDS=1 python3 -c 'import threading, time
t = threading.Thread(target=time.sleep, args=(1.2,)); t.start(); t.join(); print("done")' >got 2>err
  [ "$(cat got)" = done ] && [ "$(grep -c . err)" = 1 ] && grep -qF "$2" err || fail "FIBERTHREAD_METRICS=$1: $(cat got err)"
}
bad no/such/dir/file 'it cannot be made (error 2)'
bad example.org:80 'the host is neither a number nor localhost'
bad 127.0.0.1:99999 'no such address'
bad "unix:/$(printf 'x%.0s' {1..200})" 'the path is too long for a socket'
(ulimit -f 1; bad "$TMP/dir/limited" 'it cannot be written (error 27)') || exit 1
exit 0
