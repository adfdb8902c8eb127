#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# FIBERTHREAD_WORKER_NAMES: kernel threads carry the names of the threads that they run, and the program sees what it sees without that.
. "$(dirname "$0")/../lib.sh"
cat >"$TMP/names.c" <<'END'
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int stop, spins;
static pthread_t spinner;
static char was_given[16];
static void is_called(const char* name) {
  char text[16], again[16];
  if (pthread_getname_np(pthread_self(), text, sizeof text) || prctl(PR_GET_NAME, again)) exit(3);
  if (!strcmp(text, name) && !strcmp(again, name)) return;
  fprintf(stderr, "'%s' and '%s', not '%s'\n", text, again, name);
  exit(4);
}
static void* spin(void* p) {
  const char* name = p;
  if (*name) pthread_setname_np(pthread_self(), name);
  is_called(*name ? name : "names");
  spins = gettid();
  while (!stop);
  return 0;
}
static int start(char* name) {
  stop = spins = 0;
  pthread_create(&spinner, 0, spin, strcpy(was_given, name));
  while (!spins) usleep(1000);
  return spins;
}
// The child of a fork has its maker's name, and what it executes has its own.
static void* forks(void* p) {
  const char* name = p;
  if (strcmp(name, "names")) pthread_setname_np(pthread_self(), name);
  pid_t pid = fork();
  if (!pid) {
    char comm[32] = "";
    FILE* f = fopen("/proc/self/comm", "r");
    if (!f || !fgets(comm, sizeof comm, f)) exit(5);
    comm[strcspn(comm, "\n")] = 0;
    if (strcmp(comm, name)) {
      fprintf(stderr, "/proc/self/comm of a child: '%s', not '%s'\n", comm, name);
      exit(6);
    }
    is_called(name);
    start("of child");
    stop = 1;
    pthread_join(spinner, 0);
    is_called(name);
    execlp("cat", "cat", "/proc/self/comm", (char*)0);
    exit(7);
  }
  int status;
  if (waitpid(pid, &status, 0) != pid || status) exit(8);
  return 0;
}
int main() {
  char line[64];
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    char* rest = strchr(line, ' ');
    *rest++ = 0;
    if (!strcmp(line, "spin")) {
      printf("spinner %d\n", start(rest));
    } else if (!strcmp(line, "rename")) {
      pthread_setname_np(spinner, rest);
      is_called("names");
    } else if (!strcmp(line, "stop")) {
      stop = 1;
      pthread_join(spinner, 0);
    } else if (!strcmp(line, "fork")) {
      pthread_t t;
      pthread_create(&t, 0, forks, rest);
      pthread_join(t, 0);
    } else if (!strcmp(line, "main")) {
      prctl(PR_SET_NAME, rest);
      is_called(rest);
    }
    puts("done");
    fflush(stdout);
  }
  return 0;
}
END
gcc -O2 -w -pthread -o "$TMP/names" "$TMP/names.c" || fail "gcc failed"

tell() { # LINE
  local before
  before=$(grep -c done "$TMP/out")
  echo "$*" >&9
  for ((i = 0; i < 3000; i++)); do
    [ "$(grep -c done "$TMP/out")" -gt "$before" ] && return
    kill -0 $pid 2>/dev/null || fail "workers=$workers, after $*: it has ended"
    sleep 0.01
  done
  fail "workers=$workers, after $*: no answer"
}
# carried NAME: waits until a kernel thread has this name; carried_not NAME: until none has it.
carriers() { cat /proc/$pid/task/*/comm 2>/dev/null | grep -cx -- "$1"; }
carried() {
  for ((i = 0; i < 3000; i++)); do [ "$(carriers "$1")" -gt 0 ] && return; sleep 0.01; done
  fail "workers=$workers: no kernel thread is called $1: $(cat /proc/$pid/task/*/comm)"
}
carried_not() {
  for ((i = 0; i < 3000; i++)); do [ "$(carriers "$1")" = 0 ] && return; sleep 0.01; done
  fail "workers=$workers: a kernel thread is still called $1: $(cat /proc/$pid/task/*/comm)"
}
for workers in 1 2 16; do
  begin $workers FIBERTHREAD_WORKER_NAMES=1 ./names
  tell spin spinner
  carried spinner
  # While it runs, another thread gives it a name.
  tell rename other
  carried other
  carried_not spinner
  [ "$workers" = 1 ] || carried names
  tell stop it
  carried_not other
  carried names
  # A thread that was never given a name is shown by its id.
  tell "spin "
  id=$(sed -n 's/^spinner //p' "$TMP/out" | tail -n 1)
  carried "$id"
  tell stop it
  carried_not "$id"
  tell fork names
  tell fork forker
  [ "$(grep -cx cat "$TMP/out")" = 2 ] || fail "workers=$workers: what a child executes: $(cat "$TMP/out")"
  carried_not forker
  tell main head
  carried head
  [ "$(cat /proc/$pid/comm)" = head ] || fail "workers=$workers: the process is called $(cat /proc/$pid/comm)"
  end "workers=$workers"
done
# Without the option no kernel thread has another name than the process.
begin 2 ./names
workers=2
tell spin spinner
sleep 0.1
[ "$(carriers spinner)" = 0 ] || fail "without the option: $(cat /proc/$pid/task/*/comm)"
tell stop it
end off
exit 0
