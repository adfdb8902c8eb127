#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc libdw1|libdw1t64 libunwind8
# `fiberthread top` shows what fibers do, and does not stop the process.
. "$(dirname "$0")/../lib.sh"
top="$BUILD/fiberthread top"
gcc -O1 -g -w -pthread -o "$TMP/inside" "$(dirname "$0")/../src/inside.c" || fail "gcc failed"
cat >"$TMP/pairs.c" <<'C'
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>
static sem_t a, b;
static void* ping(void* p) {
  for (;;) sem_post(&a), sem_wait(&b);
}
static void* pong(void* p) {
  for (;;) sem_wait(&a), sem_post(&b);
}
int main() {
  pthread_t t;
  char c;
  pthread_create(&t, NULL, ping, NULL);
  pthread_create(&t, NULL, pong, NULL);
  puts("ready");
  fflush(stdout);
  while (read(0, &c, 1) > 0) {}
  _exit(0);
}
C
gcc -O1 -w -pthread -o "$TMP/pairs" "$TMP/pairs.c" || fail "gcc failed"
has() { grep -qE -- "$1" "$TMP/top" || fail "no \"$1\" in $(cat "$TMP/top")"; }

begin 2 "$TMP/inside" 100
$top -b -n 2 -d 0.2 $pid >"$TMP/top" 2>"$TMP/err" || fail "status $?: $(cat "$TMP/err")"
[ "$(grep -c "^process $pid (inside): 104 fibers, 103 made, 0 ended$" "$TMP/top")" = 2 ] || fail "the first line: $(cat "$TMP/top")"
has '^fibers:  2 running, 0 ready, 102 parked$'
has '^workers: [0-9]+: [0-9]+ busy, [0-9]+ idle, [0-9]+ bound$'
has '^wait for: 100 cond, 1 mutex, 1 descriptor$'
has "^ *[0-9]+ (busy|bound) +[0-9]+  [0-9]+ 'computer'$"
has "^ *[0-9]+ (busy|bound) +[0-9]+  [0-9]+ 'reader'$"
has '^per second: [0-9]+ switches, '
parked() { sed -n '/PARKED FOR/,/^$/{/^ *[0-9]/p}' "$TMP/top" | grep -oE '[0-9.]+ s  '; }
[ "$(parked | wc -l)" = 40 ] || fail "not twenty each time: $(cat "$TMP/top")"
end inside
# With fewer than twenty fibers, all are shown, and the fiber that has waited longest comes first.
begin 2 "$TMP/inside" 3
$top -b -n 1 $pid >"$TMP/top" 2>"$TMP/err" || fail "status $?: $(cat "$TMP/err")"
has "^ *[0-9]+ +locker +[0-9.]+ s  mutex 0x[0-9a-f]+ held by fiber $pid \(main\), in locker at .*inside\.c:[0-9]+$"
has "^ *[0-9]+ +[0-9.]+ s  cond 0x[0-9a-f]+, in wait_for_never at .*inside\.c:[0-9]+$"
[ "$(parked | wc -l)" = 5 ] && [ "$(parked)" = "$(parked | sort -nr)" ] || fail "not in order: $(cat "$TMP/top")"
end inside

# top counts switches: two threads that wake each other switch all the time, and no other does.
begin 1 "$TMP/pairs"
$top -b -n 3 -d 0.3 $pid >"$TMP/top" || fail "status $?"
[ "$(sed -n 's/^per second: \([0-9]*\) switches.*/\1/p' "$TMP/top" | sort -n | head -n 1)" -gt 100 ] || fail "no switches: $(cat "$TMP/top")"
# The process ends while top shows it.
$top -b -n 1000 -d 0.05 $pid >"$TMP/last" 2>"$TMP/last.err" 9>&- &
looker=$!
for ((i = 0; i < 600; i++)); do
  grep -q '^per second' "$TMP/last" && break
  sleep 0.05
done
end pairs
wait $looker || fail "status $? when the process ended: $(cat "$TMP/last.err")"
grep -q "process $pid has ended" "$TMP/last.err" || fail "it does not say that the process has ended: $(tail -n 30 "$TMP/last" "$TMP/last.err")"

says() { # STATUS TEXT COMMAND…
  local wanted=$1 text=$2 status
  shift 2
  "$@" >"$TMP/out" 2>"$TMP/err"
  status=$?
  [ $status = $wanted ] || fail "$*: status $status"
  grep -q "$text" "$TMP/err" || fail "$*: $(cat "$TMP/err")"
}
says 1 "there is no process" $top $pid
sleep 100 &
says 1 "does not run on fiberthread" $top $!
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  begin 1 "$TMP/pairs"
  chmod 755 "$TMP"
  says 1 "only its user and root may" setpriv --reuid=65534 --regid=65534 --clear-groups $top $pid
  says 1 "only its user and root may" setpriv --reuid=65534 --regid=65534 --clear-groups "$BUILD/fiberthread" dump $pid
  end pairs
fi
kill %1
says 2 "process's id" $top x
says 2 "usage" $top
says 2 "takes seconds" $top -d x 1
exit 0
