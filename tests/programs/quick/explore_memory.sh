#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# fiberthread explore --memory: finds the bug of each program of tests/explore/memory/, which no call stands between, and none in its mended
# twin. Of a race it names both places: the lines that say RACE.
. "$(dirname "$0")/../lib.sh"
sources=$(cd "$(dirname "$0")/../../explore/memory" && pwd)
explore=$BUILD/fiberthread
cd "$TMP" || exit 1

says() { # STATUS TEXT COMMAND…
  local status=$1 text=$2
  shift 2
  timeout -k 5 100 "$@" >out 2>&1
  [ $? = "$status" ] && grep -q -- "$text" out || fail "$*: $(cat out)"
}
for source in "$sources"/*.c; do
  name=$(basename "$source" .c)
  flags="-O1 -g -w -pthread -fsanitize=thread"
  gcc $flags -o "$name" "$source" && gcc $flags -DMENDED -o "$name.mended" "$source" || fail "$name: gcc failed"
  kind='signal 6'
  grep -q RACE "$source" && kind='data race'
  says 1 "^failed: $kind" "$explore" explore --memory -q -n 1000 "./$name"
  for line in $(sed -n "s|.* in [a-z_]* at .*/$name\.c:\([0-9]*\).*|\1|p" <(grep -E ' (freed|read|written|frees|reads|writes) [0-9]+ byte' out)); do
    sed -n "${line}p" "$source" | grep -q RACE || fail "$name: line $line: $(cat out)"
    touch "$name.line"
  done
  [ "$kind" != 'data race' ] || [ -e "$name.line" ] || fail "$name: no line: $(cat out)"
  # The environment has another size then.
  says 1 "fails again" env X="$(printf %4000s x)" "$explore" replay "$name-1.explored"
  says 0 'no failure' "$explore" explore --memory -q -n 8 "./$name.mended"
done

# With races ignored, only what comes of them is a failure; the switch that does it is before an access.
says 1 'failed: signal 6' "$explore" explore --memory --races ignore -q -n 1000 ./unlocked_counter
grep -q 'thread [0-9] (adds) is stopped before a \(write to\|read of\) &counter in adds at .*unlocked_counter\.c:[0-9]*: ' out || fail "what it needs: $(cat out)"
says 1 'fails again: signal 6' "$explore" replay unlocked_counter-2.explored
says 0 'no failure' "$explore" explore --memory --races ignore -q -n 8 ./read_lock_writes
# Without --memory, the program is explored like any other.
says 0 'no failure' "$explore" explore -q -n 8 ./unlocked_counter
says 0 'no failure' "$explore" explore -q -n 8 ./double_checked.mended
# Where ThreadSanitizer itself is in the program, nothing of this can be.
if gcc -static-libtsan -fsanitize=thread -w -o static "$sources/torn.c" 2>/dev/null; then
  says 2 'ThreadSanitizer is linked into it' "$explore" explore --memory ./static
fi
says 2 'neither fail nor ignore' "$explore" explore --memory --races maybe ./torn
if command -v clang >/dev/null; then
  if clang -fsanitize=thread -w -pthread -o static "$sources/torn.c" 2>/dev/null; then
    says 2 'ThreadSanitizer is linked into it' "$explore" explore --memory ./static
  fi
  clang -O1 -g -w -pthread -fsanitize=thread -c -o by_clang.o "$sources/double_checked.c" || fail "clang failed"
  gcc -o by_clang by_clang.o -L"$BUILD" -lfiberthread-explore-memory -pthread || fail "the library cannot be linked"
  says 1 '^failed: data race' "$explore" explore --memory -q -n 1000 ./by_clang
  if clang -O1 -g -w -pthread -fsanitize=thread -shared-libsan -DMENDED -o by_clang "$sources/double_checked.c" 2>/dev/null; then
    says 0 'no failure' "$explore" explore --memory -q -n 8 ./by_clang
  fi
fi
exit 0
