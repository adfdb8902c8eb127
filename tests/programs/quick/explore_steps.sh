#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# fiberthread explore --memory: it finds the bug of each program of tests/explore/plain/, which has no call between the accesses that race, and
# none in its mended twin. Each failure is replayed, and the report says where.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
explore=$BUILD/fiberthread
cd "$TMP" || exit 1
if [ "$(uname -m)" != x86_64 ]; then
  "$explore" explore --memory true >out 2>&1
  [ $? = 2 ] && grep -q 'does not give to programs' out || fail "$(cat out)"
  exit 0
fi

# Within so many schedules, with seed 1: twice as many as it took on the machine where this was written.
declare -A most=()
replays() { # TIMES FILE
  local i
  for ((i = 0; i < $1; i++)); do
    # The environment has another size each time.
    env X="$(head -c $((i * 317)) /dev/zero | tr '\0' x)" timeout -k 5 60 "$explore" replay "$2" >again 2>&1
    [ $? = 1 ] && grep -q '^fails again: ' again || fail "$2: replay $i: $(cat again)"
  done
}
for source in "$here"/../../explore/plain/*.c; do
  name=$(basename "$source" .c)
  gcc -O2 -g -w -pthread -DMENDED -o "$name.mended" "$source" || fail "$name: gcc failed"
  timeout -k 5 100 "$explore" explore -q --memory -n 30 "./$name.mended" >out 2>&1 || fail "$name.mended: $(cat out)"
  for o in 1 2; do
    gcc -O$o -g -w -pthread -o "$name.O$o" "$source" || fail "$name: gcc failed"
    timeout -k 5 100 "$explore" explore -q --memory -n 100 "./$name.O$o" >out 2>&1
    [ $? = 1 ] && [ -s "$name.O$o-1.explored" ] || fail "$name.O$o: $(cat out)"
    replays 2 "$name.O$o-1.explored"
  done
done
replays 20 counter.O1-1.explored
