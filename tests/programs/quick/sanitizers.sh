#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# Programs built with sanitizers and for gcov run as on NPTL, and find the same errors. They run on fibers. Under ThreadSanitizer they run
# on NPTL, and a line says so.
. "$(dirname "$0")/../lib.sh"
src=$(cd "$(dirname "$0")/../src" && pwd)
cat >"$TMP/bad.c" <<'C'
#include <pthread.h>
#include <stdlib.h>
static int shared;
static void* wrong(void* p) {
  volatile int n = 12, most = 0x7fffffff;
#ifdef OVERFLOW
  most += 1;
#elif defined(RACE)
  for (int i = 0; i < 1000; i++) shared++;
#else
  volatile char* x = malloc(10);
  x[n] = 1;
#endif
  return p;
}
int main() {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, wrong, 0);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  return 0;
}
C
# on WORKERS PROGRAM ARGUMENT…: runs the program and returns its status. Its output is in $TMP/log.
on() {
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS="$1" FIBERTHREAD_STATS=1 FIBERTHREAD_VERBOSE=1 "${@:2}" >"$TMP/log" 2>&1
}
fibers() { sed -n 's/^fiberthread: fibers=\([0-9]*\) .*/\1/p' "$TMP/log" | sort -n | tail -n 1; }
has() { grep -qE -- "$1" "$TMP/log" || fail "$2: no \"$1\" in $(head -n 40 "$TMP/log")"; }

check() { # COMPILER SANITIZER
  local what="$1 -fsanitize=$2"
  $1 -g -O1 -w -pthread -fsanitize=$2 -o "$TMP/turns" "$src/turns.c" 2>"$TMP/log" || { echo "$what does not build"; return; }
  for workers in 1 2 16; do
    on $workers "$TMP/turns" || fail "$what: status $?: $(cat "$TMP/log")"
    has '^sum 2000$' "$what"
    if [ $2 = thread ]; then has "^fiberthread: threads are NPTL's: ThreadSanitizer" "$what"
    else [ "$(fibers)" = 40 ] || fail "$what: not on fibers: $(cat "$TMP/log")"; fi
    grep -qE 'WARNING|ERROR' "$TMP/log" && fail "$what: $(cat "$TMP/log")"
  done
  local define=- text
  case $2 in
    address) text='AddressSanitizer: heap-buffer-overflow' ;;
    thread) define=RACE text='ThreadSanitizer: data race' ;;
    undefined) define=OVERFLOW text='signed integer overflow' ;;
    leak) text= ;;
  esac
  if [ "$text" ]; then
    $1 -g -O1 -w -pthread -fsanitize=$2 -D${define/-/NOTHING} -o "$TMP/bad" "$TMP/bad.c" || fail "$what: bad.c"
    on 2 "$TMP/bad"
    has "$text" "$what"
    has 'bad\.c:[0-9]+' "$what"
  fi
  if [ $2 = leak ] || [ $2 = address ]; then
    $1 -g -O0 -w -pthread -fsanitize=$2 -o "$TMP/held" "$src/held.c" || fail "$what: held.c"
    on 2 "$TMP/held" || fail "$what: leaks where there are none: $(cat "$TMP/log")"
    [ "$(fibers)" = 3 ] || fail "$what: not on fibers: $(cat "$TMP/log")"
  fi
  if [ $2 = leak ]; then
    on 2 "$TMP/held" leak && fail "$what: a leak is not found"
    has 'leak of 33 byte' "$what"
  fi
}
for sanitizer in address leak thread undefined; do check gcc $sanitizer; done
if command -v clang >/dev/null; then check clang address; check clang thread; fi
# Programs that the program runs have the environment that the program was started with.
cat >"$TMP/child.c" <<'C'
#include <stdlib.h>
int main() { return system("env | grep -E 'LD_PRELOAD|BEGUN'"); }
C
gcc -w -fsanitize=address -o "$TMP/child" "$TMP/child.c" || fail "child.c"
[ "$(env LD_PRELOAD="$LIBRARY" "$TMP/child")" = "LD_PRELOAD=$LIBRARY" ] || fail "the environment of what it runs: $(env LD_PRELOAD="$LIBRARY" "$TMP/child")"

# gcov counts each line as often as on NPTL.
mkdir "$TMP/gcov" && cd "$TMP/gcov" || exit 1
gcc -g -O0 -w -pthread --coverage -fprofile-update=atomic -o turns "$src/turns.c" || fail "gcc --coverage"
count() { gcov -t turns.gcda 2>/dev/null | grep -E 'sum \+=|malloc\(1000\)|pthread_create' | sed 's/^ *\([0-9*]*\):.*/\1/'; }
./turns >/dev/null || fail "gcov on NPTL"
expected=$(count)
[ "$(wc -l <<<"$expected")" = 3 ] || fail "gcov: $expected"
for workers in 1 16; do
  rm -f ./*.gcda
  on $workers ./turns || fail "gcov: status $?"
  [ "$(count)" = "$expected" ] || fail "gcov counts $(count), not $expected"
done
exit 0
