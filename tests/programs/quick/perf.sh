#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# perf attributes the time of fibers to the program's functions, with whole call chains.
. "$(dirname "$0")/../lib.sh"
need perf
cat >"$TMP/hot.c" <<'C'
#include <pthread.h>
__attribute__((noinline)) unsigned long hot_leaf(unsigned long n) {
  volatile unsigned long s = 0;
  for (unsigned long i = 0; i < n; i++) s += i;
  return s;
}
__attribute__((noinline)) unsigned long hot_middle(unsigned long n) { return hot_leaf(n) + 1; }
void* hot_thread(void* p) {
  unsigned long s = 0;
  for (int i = 0; i < 50; i++) s += hot_middle(1000000);
  return (void*)s;
}
int main() {
  pthread_t t[6];
  for (int i = 0; i < 6; i++) pthread_create(&t[i], 0, hot_thread, 0);
  for (int i = 0; i < 6; i++) pthread_join(t[i], 0);
  return 0;
}
C
gcc -O1 -g -fno-omit-frame-pointer -w -pthread -o "$TMP/hot" "$TMP/hot.c" || fail "gcc failed"
for graph in fp dwarf; do
  perf record -q -F 199 -e cpu-clock:u --call-graph $graph -o "$TMP/data" env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=2 "$TMP/hot" >"$TMP/log" 2>&1 ||
    skip "perf may not record here: $(tail -n 2 "$TMP/log")"
  perf script -i "$TMP/data" -F comm,ip,sym 2>/dev/null >"$TMP/script"
  # A sample is a paragraph, from the innermost frame on.
  awk -v RS= '/hot_leaf/ { n++; gsub(/\n/, " "); if (/hot_leaf.* hot_middle.* hot_thread.* fiberthread::/) whole++ }
    END { print n + 0, whole + 0 }' "$TMP/script" >"$TMP/count"
  read -r samples whole <"$TMP/count"
  [ "$samples" -gt 10 ] || fail "$graph: only $samples samples in hot_leaf: $(head -n 30 "$TMP/script")"
  # A sample that was taken in a function's first instructions has no frame pointer yet.
  [ $((whole * 10)) -ge $((samples * 9)) ] || fail "$graph: only $whole of $samples chains are whole: $(head -n 60 "$TMP/script")"
done
# Stacks end where fibers begin: perf makes up no frames beyond that.
grep -A 1 'fiberthread_entry' "$TMP/script" | grep -vE 'fiberthread_entry|^--|^$' | grep -q . && fail "frames beyond the first: $(grep -A 1 -m 3 fiberthread_entry "$TMP/script")"
exit 0
