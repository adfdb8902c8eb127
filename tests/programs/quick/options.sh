#!/bin/bash
# packages: gcc
# Options: unknown or odd values give one line and do no harm; the ways to NPTL work.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/many" "$(dirname "$0")/../src/many.c" || fail "gcc failed"
run() { env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=1 "$@" "$TMP/many" 100 >"$TMP/out" 2>"$TMP/err" || fail "$*: status $?"; }
says() { [ "$(grep -c "$1" "$TMP/err")" = 1 ] || fail "expected one line with \"$1\": $(cat "$TMP/err")"; }
for bad in WORKERS=abc WORKERS= WORKERS=0 WORKERS=-1 WORKERS=99999999999999999999 WORKERS=2x SPAWN=sideways STATS=maybe NPTL=yes SELFCHECK=pass NO_SUCH=1; do
  run FIBERTHREAD_$bad
  [ "$(grep -vc 'fibers=' "$TMP/err")" = 1 ] || fail "$bad: $(cat "$TMP/err")"
  says "FIBERTHREAD_${bad%%=*}"
done
for good in SPAWN=round-robin SPAWN=local SPAWN=adaptive WORKERS=3 WORKERS=256; do
  run FIBERTHREAD_$good
  says 'fibers=164'
done
run FIBERTHREAD_NPTL=1 FIBERTHREAD_VERBOSE=1
says "NPTL's: asked for"
says 'fibers=0'
run FIBERTHREAD_SELFCHECK=fail FIBERTHREAD_VERBOSE=1
says 'self-check was told to fail'
says 'fibers=0'
run FIBERTHREAD_SELFCHECK=fail
[ "$(grep -vc 'fibers=' "$TMP/err")" = 0 ] || fail "not silent: $(cat "$TMP/err")"
"$BUILD/fiberthread" --stats --workers 2 -- "$TMP/many" 100 >/dev/null 2>"$TMP/err" || fail "launcher: status $?"
says 'fibers=164'
"$BUILD/fiberthread" --workers none true 2>/dev/null && fail "the launcher takes nonsense"
"$BUILD/fiberthread" /no/such/program 2>/dev/null
[ $? = 127 ] || fail "the launcher's status for a missing program"
exit 0
