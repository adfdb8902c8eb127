#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# fiberthread explore --memory: it finds the bug of each program of tests/explore/plain/, which has no call between the accesses that race, and
# none in its mended twin. Each failure is replayed, and the report says where.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
explore=$BUILD/fiberthread
cd "$TMP" || exit 1
if [ "$(uname -m)" != x86_64 ]; then
  "$explore" explore --memory true >out 2>&1
  [ $? = 2 ] && grep -q 'must be built with -fsanitize=thread' out || fail "$(cat out)"
  exit 0
fi

replays() { # TIMES FILE
  local i
  for ((i = 0; i < $1; i++)); do
    # The environment has another size each time.
    env X="$(head -c $((i * 317)) /dev/zero | tr '\0' x)" timeout -k 5 60 "$explore" replay "$2" >again 2>&1
    [ $? = 1 ] && grep -q '^fails again: ' again || fail "$2: replay $i: $(cat again)"
  done
}
compile() { # NAME SOURCE OPTION…
  local name=$1 source=$2
  shift 2
  gcc -g -w -pthread -o "$name" "$@" "$source" || fail "$name: gcc failed"
}
for source in "$here"/../../explore/plain/*.c; do
  name=$(basename "$source" .c)
  compile "$name.mended" "$source" -O2 -DMENDED
  # Two stops at the right places are rarely drawn.
  most=100
  [ "$name" != petersons_lock ] || most=2000
  timeout -k 5 100 "$explore" explore -q --memory -n 12 "./$name.mended" >out 2>&1 || fail "$name.mended: $(cat out)"
  for o in 1 2; do
    compile "$name.O$o" "$source" -O$o
    timeout -k 5 200 "$explore" explore -q --memory --seed 5 -n $most "./$name.O$o" >"$name.O$o.out" 2>&1
    [ $? = 1 ] && [ -s "$name.O$o-1.explored" ] || fail "$name.O$o: $(cat "$name.O$o.out")"
    replays 1 "$name.O$o-1.explored"
  done
done
replays 20 counter.O1-1.explored
grep -q 'is stopped between reading and writing &counter in counts at .*counter.c:11: ' counter.O1.out || fail "what it needs: $(cat counter.O1.out)"
grep -q 'is stopped before an access to .* in publishes at .*flag_before_data.c:1[23]: ' flag_before_data.O2.out || fail "what it needs: $(cat flag_before_data.O2.out)"
# Without --memory there is nothing to find.
timeout -k 5 60 "$explore" explore -q -n 30 ./flag_before_data.O1 >out 2>&1 || fail "without --memory: $(cat out)"

# The program's own traps, its flag for steps, a thread that blocks all signals, and calls that block them for a while.
cat >traps.c <<'EOF'
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
extern char** environ;
static volatile int traps, others, shared[3];
static pthread_key_t key;
static void handle(int sig, siginfo_t* info, void* context) {
  if (info->si_code == TRAP_TRACE) others++;
  else __sync_fetch_and_add(&traps, 1);
}
static void mask(int how) {  // by the kernel alone
  unsigned long all = ~0ul, result = 14;
  asm volatile("mov $8, %%r10d; syscall" : "+a"(result) : "D"(how), "S"(&all), "d"(0) : "rcx", "r10", "r11", "memory");
}
static void* works(void* p) {
  int* mine = (int*)shared + (long)p;
  if (p == 0) {
    mask(SIG_BLOCK);
    ++*mine;
    --*mine;
    mask(SIG_UNBLOCK);
  }
  if (p == (void*)1) {
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGTRAP);
    pthread_sigmask(SIG_SETMASK, &all, 0);
  }
  for (int i = 0; i < 3; i++) {
    ++*mine;
    asm volatile("int3" ::: "memory");
    sched_yield();  // a window ends at each of these, and may begin at the call
    ++*mine;
    asm volatile("pushfq; popfq" ::: "memory", "cc");
    sched_yield();
    pthread_setspecific(key, mine);
    ++*(int*)pthread_getspecific(key);
  }
  if (p == (void*)2) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    ++*mine;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    --*mine;
    char* argv[] = {"true", 0};
    pid_t child;
    int status;
    assert(posix_spawnp(&child, "true", 0, 0, argv, environ) == 0);
    assert(waitpid(child, &status, 0) == child && status == 0);
  }
  free(malloc(100));
  return p;
}
int main() {
  struct sigaction a = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, now;
  sigaction(SIGTRAP, &a, 0);
  pthread_key_create(&key, 0);
  pthread_t t[3];
  for (long i = 0; i < 3; i++) pthread_create(&t[i], 0, works, (void*)i);
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  sigaction(SIGTRAP, 0, &now);
  assert(now.sa_sigaction == handle && traps == 9 && !others);
  for (int i = 0; i < 3; i++) assert(shared[i] == 9);
}
EOF
compile traps traps.c -O1
timeout -k 5 100 "$explore" explore -q --memory -n 60 ./traps >out 2>&1 || fail "traps: $(cat out)"
# In gdb, which takes steps for its own, the program is shown where it fails.
if command -v gdb >/dev/null; then
  timeout -k 5 100 "$explore" replay --gdb counter.O1-1.explored >out 2>&1 <<<$'set confirm off\nbt\ninfo fibers\nkill\nquit'
  grep -q 'raise' out && grep -q 'counter\.c:1[0-9]$' out && grep -q 'fiber .*(main)' out || fail "gdb: $(cat out)"
fi
exit 0
