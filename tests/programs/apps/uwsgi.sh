#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps curl python3 uwsgi-core uwsgi-plugin-python3
# The workers share robust mutexes. Some are killed while they may own one.
. "$(dirname "$0")/../lib.sh"
need uwsgi
cd "$TMP"
port=$((20000 + $$ % 20000))
head -c 3000000 /dev/urandom >file
cat >app.py <<'P'
import hashlib, threading, time
lock = threading.Lock()
def application(env, start):
    data = env["wsgi.input"].read(int(env.get("CONTENT_LENGTH") or 0))
    with lock:
        if env["PATH_INFO"] == "/sleep": time.sleep(0.001)
    body = hashlib.sha256(data).hexdigest().encode() + data
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
P
cat >client.py <<'P'
import hashlib, http.client, random, sys, threading
bad = []
def client(k):
    r = random.Random(k)
    for i in range(25):
        data = r.randbytes(r.choice([0, 10, 5000, 200000]))
        c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
        try:
            c.request("POST", r.choice(["/", "/sleep"]), data)
            ok = c.getresponse().read() == hashlib.sha256(data).hexdigest().encode() + data
        except Exception as e: ok = e
        c.close()
        if ok is not True: bad.append((k, i, len(data), ok))
threads = [threading.Thread(target=client, args=(k,)) for k in range(24)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(bool(bad) and str(bad[:3]))
P
clients() { timeout 100 python3 client.py $port || fail "clients, $1: status $?"; }
trap 'kill -9 $(pgrep -f "file $TMP/app.py") 2>/dev/null' EXIT
run() { # the expected exit status is that of the run on NPTL
  rm -f pid
  "$@" uwsgi --plugin python3 --http-socket "127.0.0.1:$port" --master --processes 2 --threads 16 --enable-threads --thunder-lock \
    --offload-threads 2 --static-map "/static=$TMP" --wsgi-file "$TMP/app.py" --pidfile "$TMP/pid" --die-on-term --disable-logging \
    --logto "$TMP/log" 2>>errors &
  job=$!
  for ((i = 0; i < 300; i++)); do [ -s pid ] && curl -s "http://127.0.0.1:$port/" >/dev/null && break; sleep 0.1; done
  clients "first"
  curl -s "http://127.0.0.1:$port/static/file" | cmp - file || fail "the file differs"
  for ((i = 0; i < 3; i++)); do
    for ((k = 0; k < 10; k++)); do curl -s -m 30 -o /dev/null "http://127.0.0.1:$port/sleep" & requests[k]=$!; done
    kill -9 "$(pgrep -P "$(cat pid)" | head -n 1)"
    wait ${requests[*]}
  done
  for ((i = 0; i < 300; i++)); do [ "$(pgrep -c -P "$(cat pid)")" = 2 ] && break; sleep 0.1; done
  clients "after workers were killed"
  kill -TERM "$(cat pid)"
  wait $job
}
run env
expected=$?
for workers in 1 2 16; do
  run fiber $workers
  status=$?
  [ $status = $expected ] || fail "SIGTERM: exit status $status on $workers workers, $expected on NPTL: $(tail -n 5 log)"
  made_fibers 16
done
