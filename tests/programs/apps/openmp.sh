#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/omp.c" <<'C'
#include <omp.h>
#include <stdio.h>
int main(void) {
  long sum = 0, count = 0, tasks = 0;
  omp_lock_t lock;
  omp_init_lock(&lock);
  for (int round = 0; round < 500; round++) {
#pragma omp parallel for reduction(+ : sum) schedule(dynamic, 64)
    for (int i = 0; i < 5000; i++) sum += i % 7;
#pragma omp parallel
    {
#pragma omp critical
      count++;
#pragma omp barrier
      omp_set_lock(&lock);
      count++;
      omp_unset_lock(&lock);
#pragma omp single
      for (int k = 0; k < 10; k++)
#pragma omp task
      {
#pragma omp atomic
        tasks++;
      }
    }
  }
  printf("%ld %ld %ld\n", sum, count, tasks);
  return 0;
}
C
gcc -O2 -fopenmp -o "$TMP/omp" "$TMP/omp.c" || fail "gcc failed"
for n in 2 4 8 32; do
  export OMP_NUM_THREADS=$n
  compare $((n - 1)) "$TMP/omp"
done
