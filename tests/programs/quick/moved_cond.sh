#!/bin/bash
# SPDX-License-Identifier: MIT
# The library runs with a libc whose condition variables have another layout than in the headers that it was compiled with. It looks for the
# place where this libc marks process-shared ones. If it finds none, threads are libc's.
# packages: gcc
. "$(dirname "$0")/../lib.sh"
need gcc
src=$(cd "$(dirname "$0")/../src" && pwd)
version=
[ "$(uname -m)" = x86_64 ] && echo 'GLIBC_2.3.2 { pthread_cond_*; };' >"$TMP/version" && version=-Wl,--version-script=$TMP/version
gcc -O1 -pthread -o "$TMP/take_turns" "$src/take_turns.c" || fail "the program does not compile"
gcc -O1 -shared -fPIC $version -o "$TMP/moved.so" "$src/moved_cond.c" && gcc -O1 -shared -fPIC $version -DNOWHERE -o "$TMP/nowhere.so" "$src/moved_cond.c" ||
  fail "the stand-in for libc does not compile"
turns() { # libraries, arguments
  local list=$1
  shift
  LD_PRELOAD=$list FIBERTHREAD_VERBOSE=1 FIBERTHREAD_STATS=1 timeout -k 5 200 "$TMP/take_turns" "$@" >"$TMP/out" 2>"$TMP/err" && [ "$(cat "$TMP/out")" = "600 turns" ] ||
    fail "with $list: $(cat "$TMP/out" "$TMP/err")"
}
turns "$TMP/moved.so"
for workers in 1 2 16; do
  export FIBERTHREAD_WORKERS=$workers
  turns "$LIBRARY"
  turns "$LIBRARY:$TMP/moved.so"
  grep -q "NPTL" "$TMP/err" && fail "threads were not fibers: $(cat "$TMP/err")"
  grep -q "fibers=" "$TMP/err" || fail "no statistics: $(cat "$TMP/err")"
done
turns "$LIBRARY:$TMP/nowhere.so" alone
grep -q "threads are NPTL's: libc's condition variables have another form" "$TMP/err" || fail "nothing was found wrong: $(cat "$TMP/err")"
