#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc valgrind
# Under valgrind programs run on NPTL, a line says so, and valgrind finds no errors that are not there.
. "$(dirname "$0")/../lib.sh"
need valgrind
gcc -g -O1 -w -pthread -o "$TMP/turns" "$(dirname "$0")/../src/turns.c" || fail "gcc failed"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_VERBOSE=1 valgrind --error-exitcode=9 --leak-check=full "$TMP/turns" >"$TMP/log" 2>&1 || fail "status $?: $(cat "$TMP/log")"
for text in '^sum 2000$' "^fiberthread: threads are NPTL's: valgrind" 'ERROR SUMMARY: 0 errors'; do
  grep -q "$text" "$TMP/log" || fail "no \"$text\" in $(cat "$TMP/log")"
done
exit 0
