#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc mpich libmpich-dev openmpi-bin libopenmpi-dev
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/mpi.c" <<'C'
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
enum { kThreads = 6 };
static int me;
static long sums[kThreads];
static MPI_Comm comm[kThreads];
static void* run(void* p) {
  int k = (int)(long)p;
  for (int i = 0; i < 200; i++) {
    int out = me * 1000 + k * 10 + i, in = -1;
    MPI_Sendrecv(&out, 1, MPI_INT, !me, k, &in, 1, MPI_INT, !me, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sums[k] += in;
    if (i % 20) continue;
    int all;
    MPI_Allreduce(&in, &all, 1, MPI_INT, MPI_SUM, comm[k]);
    sums[k] += all;
  }
  return NULL;
}
int main(int argc, char** argv) {
  int level;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &me);
  for (int k = 0; k < kThreads; k++) MPI_Comm_dup(MPI_COMM_WORLD, &comm[k]);
  pthread_t t[kThreads];
  for (long k = 0; k < kThreads; k++) pthread_create(&t[k], NULL, run, (void*)k);
  long sum = 0, all[2];
  for (int k = 0; k < kThreads; k++) {
    pthread_join(t[k], NULL);
    sum += sums[k];
  }
  MPI_Gather(&sum, 1, MPI_LONG, all, 1, MPI_LONG, 0, MPI_COMM_WORLD);
  if (!me) printf("%d %ld %ld\n", level == MPI_THREAD_MULTIPLE, all[0], all[1]);
  MPI_Finalize();
  return 0;
}
C
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
tried=
for mpi in mpich openmpi; do
  command -v mpicc.$mpi >/dev/null && command -v mpirun.$mpi >/dev/null || continue
  mpicc.$mpi -O2 -o "$TMP/$mpi" "$TMP/mpi.c" -lpthread || fail "mpicc.$mpi failed"
  compare 6 mpirun.$mpi -np 2 "$TMP/$mpi"
  [ "$(cat "$TMP/nptl.out")" = "1 1423200 223200" ] || fail "$mpi: $(cat "$TMP/nptl.out")"
  tried=1
done
[ "$tried" ] || skip "neither MPICH nor Open MPI is installed"
