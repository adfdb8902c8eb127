#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# A thread that finds data at every call still gives way to others on its worker, even without preemption. There are so many such threads
# that sysmon adds no slots for them.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/turns.c" <<'C'
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kTakers = 8, kWays = 5 };
static const char* const ways[kWays] = {"read", "readv", "recv", "recv at once", "recvmsg"};
static const char* way;
static int pipe_ends[2];
static volatile int woken;

static void* other(void* p) {
  char c;
  if (read(pipe_ends[0], &c, 1) == 1) woken = 1;
  return p;
}

// Never waits: it takes only data that it has written before.
static void* take(void* p) {
  int ends[2];
  char c = 'x';
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  while (!woken) {
    write(ends[1], &c, 1);
    if (way == ways[0]) read(ends[0], &c, 1);
    if (way == ways[1]) readv(ends[0], &v, 1);
    if (way == ways[2]) recv(ends[0], &c, 1, 0);
    if (way == ways[3]) recv(ends[0], &c, 1, MSG_DONTWAIT);
    if (way == ways[4]) recvmsg(ends[0], &m, 0);
  }
  close(ends[0]);
  close(ends[1]);
  return p;
}

int main() {
  pipe(pipe_ends);
  for (int i = 0; i < kWays; i++) {
    pthread_t t, takers[kTakers];
    way = ways[i];
    woken = 0;
    pthread_create(&t, NULL, other, NULL);
    for (int k = 0; k < kTakers; k++) pthread_create(&takers[k], NULL, take, NULL);
    usleep(1000);
    write(pipe_ends[1], "x", 1);
    pthread_join(t, NULL);
    for (int k = 0; k < kTakers; k++) pthread_join(takers[k], NULL);
    printf("%s\n", way);
    fflush(stdout);
  }
}
C
gcc -O2 -w -pthread -o "$TMP/turns" "$TMP/turns.c" || fail "gcc failed"
env LD_PRELOAD="$LIBRARY" FIBERTHREAD_WORKERS=1 FIBERTHREAD_PREEMPT=0 timeout 30 "$TMP/turns" >"$TMP/out" || fail "status $? after: $(cat "$TMP/out")"
[ "$(wc -l <"$TMP/out")" = 5 ] || fail "only: $(cat "$TMP/out")"
exit 0
