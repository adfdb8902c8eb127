#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# Unknown variables and invalid values give one line and do no harm. The variables that leave threads to NPTL work.
. "$(dirname "$0")/../lib.sh"
gcc -O2 -w -pthread -o "$TMP/many" "$(dirname "$0")/../src/many.c" || fail "gcc failed"
run() { env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=1 "$@" "$TMP/many" 100 >"$TMP/out" 2>"$TMP/err" || fail "$*: status $?"; }
says() { [ "$(grep -c "$1" "$TMP/err")" = 1 ] || fail "expected one line with \"$1\": $(cat "$TMP/err")"; }
for bad in WORKERS=abc WORKERS= WORKERS=0 WORKERS=-1 WORKERS=1025 WORKERS=99999999999999999999 WORKERS=2x SPAWN=sideways STATS=maybe NPTL=yes SELFCHECK=pass NO_SUCH=1 STACK_SIZE=1k STACK_SIZE=9x DEBUG=joi TRACE= PREEMPT=off; do
  run FIBERTHREAD_$bad
  [ "$(grep -vc 'fibers=' "$TMP/err")" = 1 ] || fail "$bad: $(cat "$TMP/err")"
  says "FIBERTHREAD_${bad%%=*}"
done
# The line has the nearest valid name, of a variable and of a value.
run FIBERTHREAD_WORKER=2
says 'nearest: FIBERTHREAD_WORKERS'
run FIBERTHREAD_DEADLOK=abort
says 'nearest: FIBERTHREAD_DEADLOCK'
run FIBERTHREAD_SPAWN=roundrobin
says 'nearest: round-robin'
run FIBERTHREAD_DEBUG=join,pork
says 'nearest: park'
for good in SPAWN=round-robin SPAWN=local SPAWN=adaptive WORKERS=3 WORKERS=1024 STACK_SIZE=64k PREEMPT=0 PREEMPT=1; do
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

# The program sees the size of its stacks, on fibers and on libc's threads.
cat >"$TMP/stack.c" <<'C'
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
static void* size(void* p) {
  pthread_attr_t a;
  size_t n;
  pthread_getattr_np(pthread_self(), &a);
  pthread_attr_getstacksize(&a, &n);
  printf("%zu\n", n);
  return p;
}
int main() {
  pthread_t t;
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_create(&t, NULL, size, NULL);
  pthread_join(t, NULL);
  pthread_create(&t, &a, size, NULL);
  pthread_join(t, NULL);
  pthread_attr_setstacksize(&a, 1 << 20);
  pthread_create(&t, &a, size, NULL);
  pthread_join(t, NULL);
}
C
gcc -O2 -w -pthread -o "$TMP/stack" "$TMP/stack.c" || fail "gcc failed"
[ "$(FIBERTHREAD_STACK_SIZE=256k FIBERTHREAD_NPTL=1 LD_PRELOAD="$LIBRARY" "$TMP/stack" | tr '\n' ' ')" = "262144 262144 1048576 " ] || fail "stacks on NPTL"
# A fiber's stack also has the rest of its block.
FIBERTHREAD_STACK_SIZE=256k LD_PRELOAD="$LIBRARY" "$TMP/stack" | tr '\n' ' ' | {
  read -r a b c
  [ "$a" -ge 262144 ] && [ "$a" -lt 524288 ] && [ "$b" = "$a" ] && [ "$c" -ge 1048576 ] && [ "$c" -lt 2097152 ] || fail "stacks: $a $b $c"
} || exit 1

# Statistics as JSON. Main waits in its first join, since its only worker runs no other thread before.
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=json FIBERTHREAD_WORKERS=1 FIBERTHREAD_PREEMPT=0 "$TMP/many" 100 2>"$TMP/err" >/dev/null
python3 - "$TMP/err" <<'P' || fail "statistics: $(cat "$TMP/err")"
import json, sys
s = json.loads(open(sys.argv[1]).read())["fiberthread"]
assert s["fibers"] == 164 and s["live"] == 1 and s["peak"] == 101 and s["workers"] >= 1, s
assert s["recycled"] >= 60 and s["switches"] > 164, s
assert sum(s["parked_for"].values()) == s["parks"] > 100 and s["parked_for"]["cond"] >= 100 and s["parked_for"]["join"] >= 1, s
P
# Processes that have made no thread print no statistics: the shell, and the child of a fork.
cat >"$TMP/child.c" <<'C'
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void* nothing(void* p) { return p; }
int main() {
  pthread_t t;
  pthread_create(&t, NULL, nothing, NULL);
  pthread_join(t, NULL);
  if (fork() == 0) exit(0);
  return wait(NULL) < 0;
}
C
gcc -O2 -w -pthread -o "$TMP/child" "$TMP/child.c" || fail "gcc failed"
for nptl in 0 1; do
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=1 FIBERTHREAD_NPTL=$nptl sh -c '"$1"; true' - "$TMP/child" 2>"$TMP/err" || fail "statistics of children"
  says 'fibers='
done

# Without preemption, the only worker stays with the computing thread. With preemption, it does not.
cat >"$TMP/spin.c" <<'C'
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
static atomic_int stop;
static void* set(void* p) { stop = 1; return p; }
int main() {
  pthread_t t;
  pthread_create(&t, NULL, set, NULL);
  struct timespec a, b;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
  do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
  while (!stop && (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 400);
  printf("%d\n", stop);
  pthread_join(t, NULL);
}
C
gcc -O2 -w -pthread -o "$TMP/spin" "$TMP/spin.c" || fail "gcc failed"
if [ "$(uname -m)" = x86_64 ]; then
  env LD_PRELOAD="$LIBRARY" FIBERTHREAD_STATS=1 FIBERTHREAD_WORKERS=1 FIBERTHREAD_PREEMPT=0 "$TMP/spin" >"$TMP/out" 2>"$TMP/err"
  grep -q 'preemptions=0 ' "$TMP/err" || fail "preempted all the same: $(cat "$TMP/err")"
  [ "$(env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=1 "$TMP/spin")" = 1 ] || fail "not preempted"
fi
exit 0
