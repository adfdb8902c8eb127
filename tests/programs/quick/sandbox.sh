#!/bin/bash
# SPDX-License-Identifier: MIT
# A program runs as outside where there is no /proc, or another one: in an empty root, and in namespaces of users, processes and mounts.
# packages: gcc util-linux bubblewrap
. "$(dirname "$0")/../lib.sh"
need unshare
cat >"$TMP/threads.c" <<'P'
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int turn, wire[2];
static void* run(void* p) {
  for (int i = 0; i < 50; i++) {
    pthread_mutex_lock(&m);
    while (turn % 8 != (long)p) pthread_cond_wait(&c, &m);
    turn++;
    pthread_cond_broadcast(&c);
    pthread_mutex_unlock(&m);
    if (i % 10 == 0) usleep(300);
    for (volatile int k = 0; k < 10000; k = k + 1) {
    }
  }
  return NULL;
}
static void* reads(void* p) {
  char b;
  return (void*)(long)read(wire[0], &b, 1);
}
static void* asks(void* p) {  // blocks in the kernel where nobody is told of it
  pid_t pid = fork();
  if (pid == 0) usleep(20000), _exit(3);
  int status;
  waitpid(pid, &status, 0);
  return (void*)(long)(WEXITSTATUS(status) == 3);
}
int main() {
  pthread_t t[8], r[8], w[8];
  long sum = 0;
  void* v;
  pipe(wire);
  for (long i = 0; i < 8; i++) pthread_create(&r[i], NULL, reads, NULL), pthread_create(&w[i], NULL, asks, NULL), pthread_create(&t[i], NULL, run, (void*)i);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL), pthread_join(w[i], &v), sum += (long)v;
  for (int i = 0; i < 8; i++) write(wire[1], "x", 1);
  for (int i = 0; i < 8; i++) pthread_join(r[i], &v), sum += (long)v;
  printf("%d %ld proc %d\n", turn, sum, access("/proc/self", F_OK));
  return 0;
}
P
gcc -O2 -w -pthread -static-libgcc -o "$TMP/threads" "$TMP/threads.c" || fail "gcc failed"

# Makes a root with the files that the loader needs, and nothing else.
root=$TMP/root
mkdir -p "$root/tmp"
for file in "$TMP/threads" "$LIBRARY" $(ldd "$TMP/threads" "$LIBRARY" | grep -o '/[^ :]*\.so[^ :]*'); do
  mkdir -p "$root$(dirname "$file")" && cp -fL "$file" "$root$file"
done
loader=$(ldd "$TMP/threads" | grep -o '/lib[^ ]*ld-linux[^ ]*')
inside=("$loader" --preload "$LIBRARY" "$TMP/threads")
outside=("$loader" "$TMP/threads")
tried=0
try() { # how to get in
  local expected
  expected=$(timeout -k 5 60 "$@" "${outside[@]}" 2>"$TMP/err") || { echo "not here: $*: $(head -n 1 "$TMP/err")"; return; }
  tried=$((tried + 1))
  for workers in 1 2 16; do
    out=$(FIBERTHREAD_WORKERS=$workers timeout -k 5 60 "$@" "${inside[@]}" 2>"$TMP/err") || fail "$*: status $? on $workers workers: $(cat "$TMP/err")"
    [ "$out" = "$expected" ] || fail "$*: $out, not $expected, on $workers workers"
  done
}
try chroot "$root"
try unshare --user --map-root-user --pid --fork --mount chroot "$root"
try unshare --user --map-root-user --pid --fork --mount-proc
try unshare --user --map-root-user --net --ipc --uts
command -v bwrap >/dev/null && {
  try bwrap --bind "$root" / --unshare-all
  try bwrap --ro-bind / / --proc /proc --dev /dev --unshare-all --die-with-parent
  try bwrap --ro-bind / / --tmpfs /proc --unshare-pid --die-with-parent
}
[ $tried -gt 0 ] || skip "neither chroot nor namespaces are allowed here"
