#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3 libdw1|libdw1t64
# The flight recorder: `fiberthread record` of processes and cores, and the trace that FIBERTHREAD_RECORD has written at a crash, a deadlock,
# a signal.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -g -w -pthread -o "$TMP/ends" "$(dirname "$0")/../src/ends_badly.c" || fail "gcc failed"
cd "$TMP" || exit 1
ft=$BUILD/fiberthread

# check FILE: fails unless the trace is as the program is: turns of two threads, on tracks whose slices follow each other.
check() {
  python3 - "$1" <<'END' || fail "$1: $(head -c 2000 "$1")"
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
runs = [e for e in events if e["ph"] == "X"]
tracks = {}
for e in runs: tracks.setdefault(e["tid"], []).append(e)
for track in tracks.values():
    for a, b in zip(track, track[1:]):
        assert a["ts"] + a["dur"] <= b["ts"] + 0.002, (a, b)
names = {}
for e in runs: names[e["name"].split(" ")[-1]] = names.get(e["name"].split(" ")[-1], 0) + 1
assert names.get("zero", 0) > 50 and names.get("one", 0) > 50, names
assert abs(names["zero"] - names["one"]) < 0.2 * len(runs) + 10, names
assert sum(e["args"]["then"] == "waits for cond" for e in runs) > 100, "cond"
assert any(e["ph"] == "M" and e["name"] == "thread_name" for e in events), "names"
length = max(e["ts"] + e["dur"] for e in runs)
assert 0 < length < 1e9, length  # µs
END
}

# A process, from outside; it goes on.
for workers in 1 2 16; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=$workers ./ends waits >out &
  pid=$!
  for ((i = 0; i < 1000; i++)); do grep -q ready out && break; sleep 0.01; done
  sleep 0.2
  "$ft" record -o live.json $pid >said || fail "record: status $?: $(cat said)"
  grep -q 'runs of fibers on [0-9]* workers, in the last [0-9.]* s: live.json' said || fail "record: $(cat said)"
  check live.json
  (cd "$TMP" && "$ft" record $pid >said) && [ -s fiberthread-$pid.json ] || fail "the default name: $(ls)"
  [ "$(sed -n 's/^State:[^(]*(\(.*\))/\1/p' /proc/$pid/status)" != stopped ] || fail "the process does not go on"
  if [ $workers = 2 ] && makes_cores; then
    ulimit -c unlimited
    prlimit --pid $pid --core=unlimited
    exec 9</dev/null
    end_by_core
    "$ft" record -o core.json "$core" >said 2>&1 || fail "record of a core: $(cat said)"
    check core.json
    rm -f "$core"
    continue
  fi
  kill -KILL $pid
  wait $pid 2>/dev/null
done
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_RECORDER=0 ./ends waits >out &
pid=$!
for ((i = 0; i < 1000; i++)); do grep -q ready out && break; sleep 0.01; done
"$ft" record -o none.json $pid >said && grep -q '^0 runs of fibers on 0 workers' said || fail "without a recorder: $(cat said)"
kill -KILL $pid
wait $pid 2>/dev/null
"$ft" record 1 >said 2>&1 && fail "a process without the library: $(cat said)"
"$ft" record -o /no/such/dir/x $$ >said 2>&1 && fail "no such directory"

# At its end. The status stays that of the signal.
ulimit -c 0
end() { # how, status, text in the report
  rm -f rec.*.json
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=2 FIBERTHREAD_RECORD=rec.%p.json FIBERTHREAD_DEADLOCK=abort timeout --preserve-status -s KILL 60 ./ends "$1" >out 2>err
  local status=$?
  [ $status = "$2" ] || fail "$1: status $status, not $2: $(cat err)"
  [ "$(ls rec.*.json 2>/dev/null | wc -l)" = 1 ] || fail "$1: no trace: $(cat err)"
  grep -q "$3" err || fail "$1: no \"$3\": $(cat err)"
  check rec.*.json
}
end segv 139 breaks
end abort 134 breaks
end ill 132 breaks
end fpe 136 breaks
end deadlock 134 'deadlock: '
# Without it, these end as ever, without a word.
for case in segv:139 abort:134; do
  env LD_PRELOAD="$LIBRARY" ./ends ${case%:*} >out 2>err
  [ $? = ${case#*:} ] && [ "$(grep -c fiberthread: err)" = 0 ] || fail "$case: $(cat err)"
done
# By a signal: the program goes on.
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_RECORD=$TMP/sig.json FIBERTHREAD_DUMP_SIGNAL=10 ./ends waits >out 2>err &
pid=$!
for ((i = 0; i < 1000; i++)); do grep -q ready out && break; sleep 0.01; done
sleep 0.2
kill -USR1 $pid
for ((i = 0; i < 1000; i++)); do grep -q 'sig.json' err && break; sleep 0.01; done
kill -KILL $pid 2>/dev/null || fail "the signal ends it: $(cat err)"
wait $pid 2>/dev/null
check sig.json
exit 0
