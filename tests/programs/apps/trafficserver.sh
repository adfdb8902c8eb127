#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: procps curl python3 trafficserver
# Its threads choose their CPUs, and so have kernel threads of their own.
. "$(dirname "$0")/../lib.sh"
need traffic_server
cd "$TMP"
port=$((20000 + $$ % 20000))
cat >origin.py <<'P'
import hashlib, http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = hashlib.sha256(self.path.encode()).digest() * int(self.path.split("/")[-1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=600" if "cached" in self.path else "no-store")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 200
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
P
cat >client.py <<'P'
import hashlib, http.client, random, sys, threading
bad = []
def client(k):
    r = random.Random(k); c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=100)
    for i in range(30):
        path = "/%s%d/%d" % (r.choice(["cached", "other"]), r.randrange(20), r.choice([1, 100, 5000, 20000]))
        try:
            c.request("GET", path)
            ok = c.getresponse().read() == hashlib.sha256(path.encode()).digest() * int(path.split("/")[-1])
        except Exception as e: ok = e
        if ok is not True: bad.append((k, i, path, ok))
threads = [threading.Thread(target=client, args=(k,)) for k in range(24)]
for t in threads: t.start()
for t in threads: t.join()
sys.exit(bool(bad) and str(bad[:3]))
P
/usr/bin/python3 origin.py $((port + 1)) 2>/dev/null &
origin=$!
trap 'kill -9 $origin $(cat "$TMP/root/run/server.lock") 2>/dev/null' EXIT
run() { # the expected exit status is that of the run on NPTL
  rm -rf root && mkdir -p root/etc root/var root/run root/log root/cache
  for i in prefix exec_prefix bindir sbindir datadir includedir libdir libexecdir; do echo "$i: $TMP/root"; done >root/runroot.yaml
  for i in sysconfdir:etc localstatedir:var runtimedir:run logdir:log cachedir:cache; do echo "${i%:*}: $TMP/root/${i#*:}"; done >>root/runroot.yaml
  cp -r /etc/trafficserver/{ip_allow.yaml,logging.yaml,body_factory} root/etc
  cat >root/etc/records.config <<C
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT 8
CONFIG proxy.config.accept_threads INT 2
CONFIG proxy.config.task_threads INT 4
CONFIG proxy.config.cache.threads_per_disk INT 8
CONFIG proxy.config.http.server_ports STRING $port:ip-in=127.0.0.1
CONFIG proxy.config.admin.user_id STRING #-1
C
  echo "map / http://127.0.0.1:$((port + 1))/" >root/etc/remap.config
  echo "cache 64M" >root/etc/storage.config
  TS_RUNROOT=$TMP/root "$@" traffic_server >out 2>errors &
  job=$!
  for ((i = 0; i < 300; i++)); do [ "$(curl -s "http://127.0.0.1:$port/other/1" -o /dev/null -w '%{http_code}')" = 200 ] && break; sleep 0.1; done
  for i in 1 2; do timeout 100 /usr/bin/python3 client.py $port || fail "clients: status $?"; done
  kill -TERM "$(cat root/run/server.lock)"
  wait $job
}
run env
expected=$?
for workers in 1 2 16; do
  run fiber $workers
  status=$?
  [ $status = $expected ] || fail "SIGTERM: exit status $status on $workers workers, $expected on NPTL: $(tail -n 5 root/log/diags.log)"
  made_fibers 20
done
