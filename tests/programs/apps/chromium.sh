#!/bin/bash
# SPDX-License-Identifier: MIT
# A browser in its own sandbox (namespaces, and filters that trap unknown calls) shows the same page on NPTL and on fibers. The
# processes that show it, under their filters, have fibers.
# packages: chromium chromium-sandbox fonts-dejavu-core procps
. "$(dirname "$0")/../lib.sh"
need chromium
browser=/usr/lib/chromium/chromium
[ -x $browser ] || skip "chromium is elsewhere"
readable_library
# As root, the browser refuses to use its sandbox.
as=()
if [ "$(id -u)" = 0 ]; then
  need setpriv
  as=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
  chown -R nobody "$TMP"
fi
cat >"$TMP/page.html" <<'P'
<!doctype html><html><body><p id="p">before</p><canvas id="c" width="64" height="64"></canvas><script>
const code = 'onmessage = e => { let s = 0; for (let i = 0; i < 2000000; i++) s += (i * e.data) % 7; postMessage(e.data + ":" + s); }';
// The browser's own time runs ahead when there is work only in workers. This timer is other work until they have answered.
const busy = setInterval(() => {}, 1);
const all = [];
for (let n = 1; n <= 4; n++) all.push(new Promise(done => {
  const w = new Worker(URL.createObjectURL(new Blob([code])));
  w.onmessage = e => done(e.data);
  w.postMessage(n);
}));
const g = document.getElementById('c').getContext('2d');
g.fillStyle = 'rgb(10, 200, 30)';
g.fillRect(8, 8, 16, 16);
all.push(Promise.resolve('pixel ' + g.getImageData(12, 12, 1, 1).data.join(' ')));
all.push(new Promise(done => { const i = new Image(); i.onload = () => done('image ' + i.width); i.src = document.getElementById('c').toDataURL(); }));
Promise.all(all).then(r => { document.getElementById('p').textContent = r.join(', '); clearInterval(busy); });
</script></body></html>
P
run() { # environment
  rm -rf "$TMP/home"
  "${as[@]}" mkdir -p "$TMP/home"
  env "$@" HOME="$TMP/home" timeout -k 5 120 "${as[@]}" $browser --headless --disable-gpu --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --user-data-dir="$TMP/home/data" "${more[@]}" "file://$TMP/page.html" 2>"$TMP/err"
}
more=(--virtual-time-budget=1000000 --dump-dom)
run A=b >"$TMP/nptl.out" || skip "chromium does not run in its sandbox here: $(grep -v dbus "$TMP/err" | tail -n 2)"
grep -q '1:.*, 2:.*, 3:.*, 4:.*pixel 10 200 30 255.*image 64' "$TMP/nptl.out" || fail "no page on NPTL: $(cat "$TMP/nptl.out")"
for workers in "" 1 2 16; do
  run LD_PRELOAD="$LIBRARY" ${workers:+FIBERTHREAD_WORKERS=$workers} FIBERTHREAD_STATS=1 >"$TMP/fiber.out" || fail "status $? on $workers workers: $(grep -v dbus "$TMP/err" | tail -n 5)"
  diff "$TMP/nptl.out" "$TMP/fiber.out" || fail "another page on $workers workers"
  grep '^fiberthread: ' "$TMP/err" >"$TMP/stats"
  made_fibers 20
done
# The test takes a picture of a page that does not change.
echo '<!doctype html><body style="background:#123"><h1 style="color:#fed">Fibers</h1><div style="border-radius:9px;background:linear-gradient(red,blue);height:60px">' >"$TMP/page.html"
more=(--screenshot="$TMP/home/picture.png" --window-size=200,200)
run A=b && cp "$TMP/home/picture.png" "$TMP/nptl.png" || fail "no picture on NPTL"
run LD_PRELOAD="$LIBRARY" || fail "no picture: status $?"
cmp "$TMP/nptl.png" "$TMP/home/picture.png" || fail "another picture"

# The process that shows the page is under a filter and has the library. Its kernel threads are workers: threads of NPTL would have names of
# their own.
more=(--remote-debugging-port=0)
run LD_PRELOAD="$LIBRARY" &
seen=0
for ((i = 0; i < 300 && !seen; i++)); do
  sleep 0.1
  for pid in $(pgrep -f -- "--type=renderer.*$TMP/home"); do
    grep -q '^Seccomp:[^0-9]*2' /proc/$pid/status 2>/dev/null && grep -q libfiberthread /proc/$pid/maps && [ "$(ls /proc/$pid/task | wc -l)" -ge 4 ] || continue
    names=$(sort -u /proc/$pid/task/*/comm)
    [ "$names" = chromium ] || fail "threads of its own in $pid: $names"
    seen=1
  done
done
pkill -f -- "--user-data-dir=$TMP/home/data"
wait
[ $seen = 1 ] || { [ "$(id -u)" = 0 ] && fail "no process with a filter and fibers"; }
exit 0
