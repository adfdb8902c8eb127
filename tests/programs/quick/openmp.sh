#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc python3
# libgomp's threads wait as fibers, in programs and in plugins. A libgomp that is built otherwise than the known ones is left alone.
. "$(dirname "$0")/../lib.sh"
[ "$(uname -m)" = x86_64 ] || skip "only builds for x86-64 are known"
cat >"$TMP/work.c" <<'C'
#include <omp.h>
#include <stdio.h>
// Numbers that are kept in vector registers on both sides of each wait, as far as the compiler likes.
void work(void) {
  enum { kThreads = 12, kRounds = 60, kSize = 64 };
  static double a[kThreads][kSize];
  double all = 0;
  long tasks = 0, critical = 0;
  omp_lock_t lock;
  omp_init_lock(&lock);
#pragma omp parallel num_threads(kThreads) reduction(+ : all)
  {
    int me = omp_get_thread_num();
    double mine = me, scale = 1.0 / (1 + me);
    for (int i = 0; i < kSize; i++) a[me][i] = i;
    for (int r = 0; r < kRounds; r++) {
#pragma omp barrier
      double next = a[(me + 1) % kThreads][r % kSize];
#pragma omp barrier
      for (int i = 0; i < kSize; i++) a[me][i] += scale * (i + r);
      mine += next * scale;
#pragma omp critical
      critical++;
      omp_set_lock(&lock);
      mine += 0.5;
      omp_unset_lock(&lock);
#pragma omp single
      for (int k = 0; k < 5; k++)
#pragma omp task
      {
#pragma omp atomic
        tasks++;
      }
    }
    all += (long)(mine * 1000);
  }
  printf("%.0f %ld %ld\n", all, tasks, critical);
  fflush(stdout);
}
C
cat >"$TMP/host.c" <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void* waits(void* p) { return pause(), p; }
int main(int argc, char** argv) {
  pthread_t t;
  pthread_create(&t, NULL, waits, NULL);
  void* plugin = dlopen(argv[1], RTLD_NOW);
  if (!plugin) return puts(dlerror()), 1;
  ((void (*)(void))dlsym(plugin, "work"))();
  return 0;
}
C
# The plugin's team sleeps in libgomp when dlopen returns.
echo 'void work(void); __attribute__((constructor)) static void first(void) { work(); }' >"$TMP/constructor.c"
echo 'void work(void); int main(void) { work(); return 0; }' >"$TMP/main.c"
gcc -O2 -fopenmp -o "$TMP/omp" "$TMP/main.c" "$TMP/work.c" && gcc -O2 -fopenmp -shared -fPIC -o "$TMP/plugin.so" "$TMP/work.c" &&
  gcc -O2 -fopenmp -shared -fPIC -o "$TMP/constructor.so" "$TMP/work.c" "$TMP/constructor.c" &&
  gcc -O2 -pthread -o "$TMP/host" "$TMP/host.c" || fail "gcc failed"
# In this copy of libgomp, one of the places that run only on old kernels is missing.
library="$(ldd "$TMP/omp" | awk '/libgomp/ {print $3}')"
mkdir "$TMP/other" && python3 - "$library" "$TMP/other/libgomp.so.1" <<'P' || fail "no copy"
import sys
data = open(sys.argv[1], "rb").read()
at = data.index(b"\x0f\x05", data.index(b"\x0f\x05\x48\x83\xf8\xda") + 6)
assert data[at:at + 6] != b"\x0f\x05\x48\x83\xf8\xda"
open(sys.argv[2], "wb").write(data[:at] + b"\x90\x90" + data[at + 2:])
P
export OMP_WAIT_POLICY=passive
expected="$("$TMP/omp")"
for workers in 1 2 16; do
  for command in "$TMP/omp" "$TMP/host $TMP/plugin.so" "env LD_LIBRARY_PATH=$TMP/other $TMP/omp"; do
    got="$(timeout 60 env FIBERTHREAD_WORKERS=$workers FIBERTHREAD_STATS=1 LD_PRELOAD="$LIBRARY" $command 2>"$TMP/err")" || fail "$command: status $?"
    [ "$got" = "$expected" ] || fail "$command with $workers workers: $got instead of $expected"
    parks="$(sed -n 's/.*[ :]futex \([0-9]*\).*/\1/p' "$TMP/err" | sort -n | tail -1)"
    case $command in
      env*) [ -z "$parks" ] || fail "an unknown libgomp was changed: $(cat "$TMP/err")" ;;
      *) [ "${parks:-0}" -ge 100 ] || fail "$command: $(cat "$TMP/err")" ;;
    esac
  done
  got="$(timeout 60 env FIBERTHREAD_WORKERS=$workers LD_PRELOAD="$LIBRARY" "$TMP/host" "$TMP/constructor.so")" || fail "a constructor: status $?"
  [ "$got" = "$expected
$expected" ] || fail "a constructor with $workers workers: $got"
done
exit 0
