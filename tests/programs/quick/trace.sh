#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3 binutils
# The trace of a known program is right: the JSON, its tracks, how slices nest, and all counts against the statistics. The
# probes and all words of FIBERTHREAD_DEBUG are tested too.
. "$(dirname "$0")/../lib.sh"
src=$(dirname "$0")/../src
gcc -O2 -w -pthread -o "$TMP/traced" "$src/traced.c" || fail "gcc failed"
gcc -O2 -w -pthread -o "$TMP/many" "$src/many.c" || fail "gcc failed"
cd "$TMP" || exit 1

cat >check.py <<'P'
import collections, json, sys

file, stats, kind = sys.argv[1:4]
events = json.load(open(file))
tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
workers = {t for t, name in tracks.items() if "worker" in name}
assert workers and [e for e in events if e["name"] == "process_name"], tracks
assert len({e["pid"] for e in events}) == 1
assert all(e.get("tid") in tracks or e["name"] in ("process_name", "main") for e in events), "an event without a track"

# A worker's track has one slice at a time, and a "blocked" slice lies within the run that is blocked.
us = lambda x: round(x * 1000)  # in whole ns
runs = collections.defaultdict(list)
blocked = []
for e in events:
    if e["ph"] == "X":
        assert e["tid"] in workers and e["dur"] >= 0, e
        (runs[e["tid"]] if e["cat"] == "run" else blocked).append(
            (us(e["ts"]), us(e["ts"]) + us(e["dur"]), e["tid"], e["args"]["fiber"]) if e["cat"] != "run" else
            (us(e["ts"]), us(e["ts"]) + us(e["dur"]), e["args"]["fiber"], e["args"]["then"], e["name"]))
for track in runs.values():
    track.sort()
    for a, b in zip(track, track[1:]):
        assert a[1] <= b[0] + 1, ("two at once", a, b)  # start and end are rounded separately
for at, until, tid, fiber in blocked:
    assert any(a - 1 <= at and until <= b + 1 and f == fiber for a, b, f, *_ in runs[tid]), ("blocked outside of its run", at, until)

# A fiber is on one worker at a time. Its track has its birth, its waits one after the other, and its end.
of_fiber = collections.defaultdict(list)
for tid, track in runs.items():
    for a, b, fiber, then, name in track: of_fiber[fiber].append((a, b, then))
for fiber, its in of_fiber.items():
    its.sort()
    for a, b in zip(its, its[1:]):
        assert a[1] <= b[0] + 1, ("runs twice at once", fiber, a, b)
        assert not a[2].startswith("ends"), ("runs after its end", fiber, a, b)
lives = collections.defaultdict(list)
for i, e in enumerate(events):
    if e["ph"] in "be": lives[e["id"]].append((us(e["ts"]), i, e["ph"], e["name"]))
assert set(of_fiber) <= set(lives), set(of_fiber) - set(lives)
waits = collections.Counter()
for fiber, its in lives.items():
    open_now = []
    its.sort()
    for at, _, ph, name in its:
        if ph == "b":
            open_now.append(name)
            if len(open_now) == 2: waits[name] += 1
        else:
            assert open_now and open_now.pop() == name, ("another ends than has begun", fiber, at, name)
        assert len(open_now) <= 2, ("life and one wait is all", fiber, at)
    assert not open_now, (fiber, its[-4:])

# Compares the trace with the library's statistics.
s = json.load(open(stats))["fiberthread"]
marks = collections.Counter(e["cat"] for e in events if e["ph"] == "i")
ends = collections.Counter(r[2].split(":")[0] for its in of_fiber.values() for r in its)
assert len(lives) == s["fibers"] + 1, (len(lives), s)
assert marks["spawn"] == s["fibers"] and ends["ends"] == s["fibers"], (marks, ends, s)
assert sum(len(r) for r in runs.values()) == s["switches"] + 1, (sum(map(len, runs.values())), s)
assert ends["parks"] == s["parks"] == sum(waits.values()) and dict(waits) == s["parked_for"], (ends, waits, s)
assert marks["steal"] == s["steals"], (marks, s)
assert marks["preempt"] == s["preemptions"] == ends["is preempted"], (marks, ends, s)
assert marks["hand-over"] == s["handovers"], (marks, s)
if kind == "traced":
    names = {e["name"] for e in events}
    assert {"waiter", "main", "hog ?1?"} <= names, names
    assert waits["semaphore"] == 20 and waits["join"] >= 1 and waits["sleep"] >= 1, waits
    if sys.argv[4] == "1":
        assert s["handovers"] >= 1 and len(blocked) >= 1 and max(b[1] - b[0] for b in blocked) > 5e7, (s, blocked)
        assert len(workers) >= 2, tracks
P
for workers in 1 2 16; do
  rm -f t.json
  timeout 100 env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_STATS=json FIBERTHREAD_WORKERS=$workers ./traced 2>stats || fail "traced: status $?: $(cat stats)"
  python3 check.py t.json stats traced $workers || fail "the trace on $workers workers: $(cat stats)"
  [ $workers != 1 ] || [ "$(uname -m)" != x86_64 ] || grep -q '"preemptions":[1-9]' stats || fail "nothing was preempted: $(cat stats)"
done
# The program makes more records than the buffers have room for.
timeout 100 env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_STATS=json FIBERTHREAD_WORKERS=2 ./many 10000 65536 2>stats >out || fail "many: status $?"
python3 check.py t.json stats many || fail "a long trace: $(cat stats)"
[ "$(cat out)" = "$(printf '10000 1\n65')" ] || fail "many: $(cat out)"

# The child of a fork has a file of its own.
rm -f t.json*
child=$(timeout 100 env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_STATS=json FIBERTHREAD_WORKERS=2 ./traced fork 2>stats) || fail "fork: status $?"
[ "$(ls t.json* | wc -l)" = 2 ] && [ -s "t.json.$child" ] || fail "files after a fork: $(ls)"
grep "\"pid\":$child," stats >stats.child
grep -v "\"pid\":$child," stats >stats.parent
python3 check.py t.json stats.parent traced 2 || fail "the parent's trace"
python3 check.py "t.json.$child" stats.child traced 2 || fail "the child's trace"
# A child that makes no thread does not end the trace of its parent.
rm -f t.json*
timeout 100 env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_STATS=json FIBERTHREAD_WORKERS=2 ./traced exits t.json >out 2>stats || fail "a child without threads: status $?"
[ "$(cat out)" = "goes on" ] && [ "$(ls t.json*)" = t.json ] || fail "after a child without threads: the trace $(cat out); $(ls)"
python3 check.py t.json stats traced 2 || fail "the trace of the parent of a child without threads"
# A process that finds the file in use has one of its own too, and %p is the process's id.
rm -f t.json*
exec 9>>t.json
flock 9
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json ./many 10 >/dev/null || fail "in use: status $?"
exec 9>&-
[ "$(ls t.json.* | wc -l)" = 1 ] && [ ! -s t.json ] || fail "a file in use: $(ls)"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=p%p.json sh -c 'echo $$ >pid; exec ./many 10' >/dev/null || fail "%p: status $?"
[ -s "p$(cat pid).json" ] || fail "%p: $(ls)"
# No event is lost when the process is killed, or ends by _exit() or exec(). `fiberthread trace` makes the file then. It has the waits and
# ends of all known fibers, however full the chunk was.
cat >leaves.c <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void* yields(void* p) {
  pthread_setname_np(pthread_self(), "yielder");
  for (long i = 0; i < (long)p; i++) sched_yield();
  return p;
}
int main(int argc, char** argv) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, yields, (void*)atol(argv[2]));
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  printf("%d\n", getpid());
  fflush(stdout);
  if (!strcmp(argv[1], "kill")) raise(SIGKILL);
  if (!strcmp(argv[1], "exit")) _exit(0);
  if (!strcmp(argv[1], "exec")) execl(argv[0], argv[0], argv[3], argv[2], "exit", NULL);
  return 1;
}
C
gcc -O1 -w -pthread -o leaves leaves.c || fail "gcc failed"
cat >left.py <<'P'
import collections, json, sys
events = json.load(open(sys.argv[1]))
yields = int(sys.argv[2])
then = collections.Counter(e["args"]["then"].split(":")[0] for e in events if e["ph"] == "X")
# On a busy machine there may be a second worker meanwhile. A fiber that yields there finds no other fiber, and goes on.
turns = 2 * yields if len({e["tid"] for e in events if e["ph"] == "X"}) == 1 else then["yields"]
assert then["yields"] == turns <= 2 * yields and then["ends"] == 2 and then["parks"] >= 1, then
assert sum(e["ph"] == "X" and e["name"] == "yielder" for e in events) == turns + 2
assert sum(e["ph"] == "M" and e["name"] == "thread_name" for e in events) >= 2
assert len({e["pid"] for e in events}) == 1
P
for yields in 3 505 10000; do
  for how in kill exit; do
    rm -f t.json*
    env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_WORKERS=1 FIBERTHREAD_PREEMPT=0 ./leaves $how $yields >/dev/null 2>&1
    [ -s t.json.raw ] && "$BUILD/fiberthread" trace t.json || fail "$how: $(ls -l)"
    [ ! -e t.json.raw ] && python3 left.py t.json $yields || fail "$how after $yields"
  done
done
rm -f t.json*
pid=$(env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json FIBERTHREAD_WORKERS=1 FIBERTHREAD_PREEMPT=0 ./leaves exec 10 exec | head -n 1)
for file in t.json t.json.$pid; do
  "$BUILD/fiberthread" trace $file && python3 left.py $file 10 || fail "exec: $(ls -l)"
done
"$BUILD/fiberthread" trace t.json 2>err && fail "a trace made twice"
"$BUILD/fiberthread" trace leaves.c 2>>err && fail "what is no trace"
[ "$(wc -l <err)" = 2 ] || fail "errors of fiberthread trace: $(cat err)"
# A FILE.raw that is not a trace stays as it is.
rm -f t.json*
for other in 'echo a photograph >t.json.raw' 'mkfifo t.json.raw' 'ln -s leaves.c t.json.raw'; do
  eval "$other"
  before=$(stat -c '%F %s %Y' t.json.raw)
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=t.json ./many 10 >out 2>err || fail "$other: $(cat err)"
  python3 -c 'import json; assert len(json.load(open("t.json")))' && [ "$(stat -c '%F %s %Y' t.json.raw)" = "$before" ] || fail "$other: $(ls -l)"
  rm -f t.json*
done
# A file that cannot be written costs one line, and nothing else.
[ "$(env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=/no/such/file ./many 10 2>err)" = "$(printf '10 1\n65')" ] && [ "$(grep -c 'no trace' err)" = 1 ] ||
  fail "a file that cannot be written: $(cat err)"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_TRACE=/dev/full ./many 10 >out 2>err
[ "$(cat out)" = "$(printf '10 1\n65')" ] && [ "$(grep -c 'ends here' err)" = 1 ] || fail "a full disk: $(cat err)"

# The library has all probes, each with arguments in registers or constants.
readelf -nW "$LIBRARY" >notes || fail "readelf"
for probe in spawn switch park unpark steal preempt hand-over done; do
  grep -qx " *Name: $probe" notes || fail "there is no probe $probe"
done
[ "$(grep -c 'Provider: fiberthread' notes)" = "$(grep -cE '^ *Arguments: 8@[%$x0-9]' notes)" ] || fail "probes without arguments: $(cat notes)"
# At the address in the note, there is a no-op.
if [ "$(uname -m)" = x86_64 ]; then
  for at in $(sed -n 's/.*Location: 0x0*\([0-9a-f]*\),.*/\1/p' notes); do
    objdump -d --no-show-raw-insn --start-address=0x$at --stop-address=$((16#$at + 1)) "$LIBRARY" | grep -q "$at:.*nop" || fail "no no-op at $at"
  done
fi

# FIBERTHREAD_DEBUG prints lines about single events.
for word in 'join:waits for the end of' 'join:has ended' wake:'is woken' park:'parks for' inbox: sysmon:; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEBUG=${word%%:*} FIBERTHREAD_WORKERS=1 ./traced >/dev/null 2>err || fail "debug $word: status $?"
  [ -z "${word#*:}" ] || grep -q "^fiberthread: ${word%%:*}: .*${word#*:}" err || fail "debug $word: $(head err)"
  [ "$(grep -vc "^fiberthread: ${word%%:*}: " err)" = 0 ] || fail "debug $word says more: $(grep -v "${word%%:*}: " err | head)"
done
grep -q 'sysmon: .*sleeps in the kernel' err || fail "debug sysmon: $(head err)"
cat >kills.c <<'C'
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
static volatile int got;
static void handler(int sig) { got++; }
static void* waits(void* p) {
  while (!got) usleep(1000);
  return p;
}
int main() {
  pthread_t t;
  signal(SIGUSR1, handler);
  pthread_create(&t, NULL, waits, NULL);
  usleep(1000);
  pthread_kill(t, SIGUSR1);
  pthread_join(t, NULL);
  raise(SIGUSR1);
  return got != 2;
}
C
gcc -w -pthread -o kills kills.c || fail "gcc failed"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_DEBUG=signal FIBERTHREAD_WORKERS=1 ./kills 2>err || fail "debug signal: status $?"
grep -q '^fiberthread: signal: fiber [0-9]* gets .*10$' err || fail "debug signal: $(head err)"
# Events of the fiber API come from a pipeline of channels with room for one value. Its stages close the channels that they send to, and a
# select is at its end.
for word in 'channel:waits to send to 0x' 'channel:waited to send, and sent to 0x' 'channel:waits to receive from 0x' \
  'channel:waited to receive, and received from 0x' 'channel:closes 0x' \
  'select:waits; cases: 2' 'select:takes case 0' 'select:takes case 1' 'select:finds closed: case [01]'; do
  env FIBERTHREAD_DEBUG=${word%%:*} FIBERTHREAD_WORKERS=1 "$BUILD/examples/pipeline" 100 2 1 >out 2>err || fail "debug $word: status $?"
  grep -q "^fiberthread: ${word%%:*}: .*${word#*:}" err || fail "debug $word: $(head err)"
  [ "$(head -n 1 out)" = "primes: 25, sum 1060" ] || fail "debug $word: $(cat out)"
done
exit 0
