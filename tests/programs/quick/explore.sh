#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# fiberthread explore and replay: what they find, what they write, and their messages. explore_found_1 to _4 have the programs.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
explore=$BUILD/fiberthread
cd "$TMP" || exit 1
gcc -O1 -g -w -pthread -o account "$here/../../explore/account.c" && gcc -O1 -g -w -pthread -DMENDED -o account.mended "$here/../../explore/account.c" || fail "gcc failed"
timeout -k 5 100 "$explore" explore -q -n 1000 ./account >out 2>&1
[ $? = 1 ] && [ -s account-1.explored ] || fail "account: $(cat out)"
# Where it fails, and as few choices as that needs.
grep -q 'after a call in main at .*account\.c:22$' out && grep -q 'what it needs, [1-3] of' out || fail "what is told: $(cat out)"

says() { # STATUS TEXT COMMAND…
  local status=$1 text=$2
  shift 2
  timeout -k 5 60 "$@" >out 2>&1
  [ $? = "$status" ] && grep -q -- "$text" out || fail "$*: $(cat out)"
}
says 2 'another program' "$explore" replay account-1.explored -- ./account.mended
says 2 'no file of fiberthread explore' "$explore" replay "$here/explore.sh"
says 2 'No such file' "$explore" replay none.explored
head -n 5 account-1.explored >cut.explored
says 2 'is cut off' "$explore" replay cut.explored
sed 's/^fiberthread-explore [0-9]*/fiberthread-explore 99/' account-1.explored >later.explored
says 2 'another version' "$explore" replay later.explored
sed 's/^schedule .*/schedule 5 0000000000000005/' account-1.explored >other.explored
says 2 'another way' "$explore" replay other.explored
says 2 'no program' "$explore" explore
says 2 'none of random, pct, pos and bounded' "$explore" explore --strategy best ./account
says 2 'no time' "$explore" explore --time soon ./account
says 2 'ENOENT\|No such file' "$explore" explore ./none
gcc -O1 -w -static -pthread -o static "$here/../../explore/account.c" 2>/dev/null && says 2 'cannot be explored' "$explore" explore ./static
mkdir part && cp "$BUILD"/fiberthread "$BUILD"/libfiberthread.so part/
says 2 'part/.*libfiberthread-explore.so: No such file' part/fiberthread explore ./account
# The threads may be those of a child, or of another program after an exec.
says 1 'exit status 134' "$explore" explore -q -n 1000 sh -c './account; exit $?'
grep -q 'is stopped .* pthread_mutex_.*lock(&lock) in withdraws at .*account.c:1[12]' out || fail "what it needs: $(cat out)"
says 1 'fails again' "$explore" replay sh-1.explored
says 1 'signal 6' "$explore" explore -q -n 1000 sh -c 'exec ./account'
# In gdb, the program stops where it fails.
if command -v gdb >/dev/null; then
  timeout -k 5 100 "$explore" replay --gdb account-1.explored >out 2>&1 <<<$'set pagination off\nset confirm off\nrun\nbt\ninfo fibers\nkill\nquit'
  grep -q 'SIGABRT' out && grep -q 'account\.c:22$' out && grep -q 'fiber .*(main)' out || fail "gdb: $(cat out)"
fi
# A trace of the run.
says 1 'fails again' "$explore" replay --trace t.json account-1.explored
"$explore" trace t.json && python3 -c 'import json; assert any(e["ph"] == "X" for e in json.load(open("t.json")))' || fail "trace: $(ls)"
# Where all threads wait for an eventfd of the program's own, time jumps at once: nothing can come from outside. (With the wait for that, so many
# runs took 90 s.)
gcc -O1 -g -w -pthread -DMENDED -o eventfd "$here/../../explore/eventfd_count.c" || fail "gcc failed"
says 0 'no failure' "$explore" explore -q -j 1 -n 1500 ./eventfd
# Status, output and check tell a failure.
says 0 'no failure' "$explore" explore -q -n 20 --status 3 sh -c 'exit 3'
says 1 'exit status 3' "$explore" explore -q -n 20 sh -c 'exit 3'
echo 42 >expected
says 0 'no failure' "$explore" explore -q -n 20 --expect expected echo 42
says 1 'another output' "$explore" explore -q -n 20 --expect expected echo 41
says 1 'check failed' "$explore" explore -q -n 20 --check 'grep -q 42' echo 41
"$explore" explore --json -n 2000 ./account >out || python3 -c 'import json; d = json.load(open("out")); assert d["failed"] and d["failures"][0]["kind"] == "signal", d' || fail "json: $(cat out)"
# Time: waits last, in a process of one thread too; a program that works until some time has passed, or until a slower thread has had its turn,
# ends; and short timers only fire early.
gcc -O1 -g -w -pthread -o explored_time "$here/../src/explored_time.c" || fail "gcc failed"
says 0 'no failure' "$explore" explore -q -n 3 --hang 20s ./explored_time alone
says 0 'no failure' "$explore" explore -q -n 12 ./explored_time busy
says 0 'no failure' "$explore" explore -q -n 300 ./explored_time sleep
says 1 'signal 6' "$explore" explore -q -n 3000 --timers 2s ./explored_time sleep
says 1 'fails again' "$explore" replay explored_time-1.explored
says 0 'no failure' "$explore" explore -q -n 300 ./explored_time taken
says 0 'no failure' "$explore" explore -q -n 5 ./explored_time tty
exit 0
