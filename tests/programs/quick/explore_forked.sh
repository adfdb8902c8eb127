#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# fiberthread explore: which programs are forked at their first thread, and that no run sees what an earlier one has left. Bounded search,
# JUnit's file, the budget, and a deadlock beside a thread that goes on.
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")/../../explore" && pwd)
explore=$BUILD/fiberthread
cd "$TMP" || exit 1

cat >left.c <<'END'
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int fd, pipes[2];
static int* shared;
static pid_t before;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, plain = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, checked = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static void* work(void* what) {
  char line[8] = "";
  struct stat s;
  pthread_mutex_lock(&lock);
  if (!strcmp(what, "reads")) assert(read(fd, line, 4) == 4);
  if (!strcmp(what, "writes")) assert(write(fd, "x", 1) == 1 && fstat(fd, &s) == 0 && s.st_size <= 2);
  if (!strcmp(what, "pipe")) assert(write(pipes[1], "ab", 2) == 2 && read(pipes[0], line, 1) == 1);
  if (!strcmp(what, "shared")) assert(++*shared <= 2);
  if (!strcmp(what, "kills")) kill(before, SIGKILL);
  pthread_mutex_unlock(&lock);
  return NULL;
}
int main(int argc, char** argv) {
  char* what = argv[1];
  before = (pid_t)syscall(SYS_getpid);
  if (!strcmp(what, "asks")) before = getpid();
  int holds_plain = !strcmp(what, "plain"), holds_recursive = !strcmp(what, "recursive"), holds_checked = !strcmp(what, "checked");
  int reads_rw = !strcmp(what, "rdlock"), writes_rw = !strcmp(what, "wrlock");
  pthread_mutex_lock(&recursive), pthread_mutex_unlock(&recursive);
  if (holds_plain) pthread_mutex_lock(&plain);
  if (holds_recursive) pthread_mutex_lock(&recursive);
  if (holds_checked) pthread_mutex_lock(&checked);
  if (reads_rw) pthread_rwlock_rdlock(&rw);
  if (writes_rw) pthread_rwlock_wrlock(&rw);
  if (!strcmp(what, "reads")) fd = open("numbers", O_RDONLY);
  if (!strcmp(what, "writes")) fd = open("written", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
  if (!strcmp(what, "wrote")) {
    FILE* f = fopen("written", "w");
    fputs("x", f);
    fclose(f);
  }
  if (!strcmp(what, "pipe")) assert(pipe(pipes) == 0);
  if (!strcmp(what, "shared")) shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!strcmp(what, "alarm")) alarm(1000);
  if (!strcmp(what, "child") && fork() == 0) _exit(3);
  if (!strcmp(what, "prints")) puts("before"), fflush(stdout);
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, work, what);
  if (holds_recursive) assert(pthread_mutex_trylock(&recursive) == 0 && pthread_mutex_unlock(&recursive) == 0);
  if (holds_recursive) assert(pthread_mutex_unlock(&recursive) == 0);
  if (holds_checked) assert(pthread_mutex_unlock(&checked) == 0);
  if (holds_plain) assert(pthread_mutex_unlock(&plain) == 0);
  if (reads_rw || writes_rw) assert(pthread_rwlock_unlock(&rw) == 0 && pthread_rwlock_trywrlock(&rw) == 0);
  if (!strcmp(what, "asks")) assert(before == getpid());
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  int status;
  if (!strcmp(what, "child")) assert(wait(&status) > 0 && WEXITSTATUS(status) == 3);
  if (!strcmp(what, "pipe")) {
    char rest[8];
    assert(read(pipes[0], rest, 8) == 2);
  }
  printf("%d\n", !strcmp(what, "prints"));
}
END
gcc -O1 -g -D_GNU_SOURCE -pthread -o left left.c || fail "gcc failed"
echo "123456789" >numbers
result() { # FIELD
  python3 -c 'import json, sys; print(json.load(open("out"))[sys.argv[1]])' "$1"
}
runs() { # FORKED COMMAND…: no run fails, and so many are forked
  local forked=$1
  shift
  timeout -k 5 100 "$explore" explore --json -j 1 -n 40 --same-output "$@" >out 2>&1
  [ $? = 0 ] && [ "$(result forked)" = "$forked" ] && [ "$(result schedules)" = 40 ] || fail "$*: $(cat out)"
}
for what in nothing reads prints plain rdlock; do runs 40 ./left $what; done
for what in writes wrote pipe shared alarm child asks recursive checked wrlock; do runs 0 ./left $what; done
runs 0 --exec ./left nothing
# What a shell starts is not the process that is waited for.
runs 0 sh -c './left nothing; exit $?'
# A run that kills the process it was forked from is run again without it.
timeout -k 5 100 "$explore" explore -q -j 1 -n 20 ./left kills >out 2>&1
[ $? = 1 ] && grep -q 'failed: signal 9' out || fail "kills: $(cat out)"
# A failure found in a forked run is the same when the program is executed.
gcc -O1 -g -w -pthread -o account "$here/account.c" || fail "gcc failed"
gcc -O1 -g -w -pthread -DMENDED -o account.mended "$here/account.c" || fail "gcc failed"
timeout -k 5 100 "$explore" explore --json -n 200 --all ./account >out 2>&1
[ $? = 1 ] && [ "$(result forked)" = 200 ] || fail "account: $(cat out)"
for f in account-*.explored; do
  "$explore" replay "$f" >again 2>&1
  [ $? = 1 ] && grep -q 'fails again' again || fail "$f: $(cat again)"
done

# The same schedules, whether forked or not: this program's timers are due at the same time.
gcc -O1 -g -w -pthread -o barrier "$here/barrier_one_of_two.c" || fail "gcc failed"
for how in "" --exec; do
  "$explore" explore --json -j 1 -n 60 --all $how ./barrier >out 2>&1
  result fingerprint
done >counts
[ "$(sort -u counts | wc -l)" = 1 ] || fail "forked and not: $(cat counts)"

# Bounded: without a preemption nothing fails, with one the bug is found, and the mended program has none. As many schedules each time.
for jobs in 1 3; do
  for depth in 0 1; do
    timeout -k 5 200 "$explore" explore --json -j $jobs --strategy bounded --depth $depth ./account.mended >out 2>&1
    [ $? = 0 ] && [ "$(result all_done)" = True ] && [ "$(result distinct)" = "$(result schedules)" ] || fail "bounded, $depth: $(cat out)"
    result schedules >"count.$depth.$jobs"
  done
done
cmp -s count.0.1 count.0.3 && cmp -s count.1.1 count.1.3 && [ "$(cat count.0.1)" -lt "$(cat count.1.1)" ] || fail "counts differ: $(head count.*)"
"$explore" explore -q --strategy bounded --depth 0 ./account >out 2>&1 || fail "bounded 0 finds: $(cat out)"
grep -q 'all schedules with at most 0 preemptions' out || fail "bounded 0: $(cat out)"
"$explore" explore -q --strategy bounded ./account >out 2>&1 && fail "bounded finds nothing: $(cat out)"
grep -q '(bounded, 1 preemption)' out || fail "bounded: $(cat out)"
"$explore" explore -q --strategy bounded -n 5 ./account.mended >out 2>&1 && ! grep -q 'these are all' out || fail "bounded, cut: $(cat out)"

# JUnit's file is XML, with the failure or without.
"$explore" explore -q -n 200 --junit good.xml ./account.mended >out 2>&1 || fail "$(cat out)"
"$explore" explore -q -n 200 --junit bad.xml ./account '<&">' >out 2>&1 && fail "$(cat out)"
python3 - <<'END' || fail "junit: $(cat good.xml bad.xml)"
import xml.etree.ElementTree as x
good, bad = x.parse("good.xml").getroot(), x.parse("bad.xml").getroot()
assert good.get("failures") == "0" and good.find("testcase/failure") is None
assert bad.get("failures") == "1" and "lock(&lock)" in bad.find("testcase/failure").text
assert bad.find("testcase").get("name").endswith('<&">')
END

# The budget holds for what comes after a failure, too.
begin=$(date +%s)
timeout -k 5 100 "$explore" explore -q --budget 2s ./account.mended >out 2>&1 || fail "budget: $(cat out)"
[ $(($(date +%s) - begin)) -le 30 ] || fail "budget: $(cat out)"

# Two threads wait for each other, and a third one polls.
gcc -O1 -g -w -pthread -o polling "$here/deadlock_beside_polling.c" || fail "gcc failed"
"$explore" explore -q -n 1000 ./polling >out 2>&1
[ $? = 1 ] && grep -q 'failed: deadlock' out && grep -q 'waits for mutex .* held by .*, which waits for mutex' out || fail "polling: $(cat out)"
# In a container, personality() may be refused, and addresses are other ones in each process. The report names the right places all the same.
cat >contained.c <<'END'
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char** argv) {
  struct sock_filter f[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 3),
                            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
                            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 1, 0),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog p = {6, f};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) || execv(argv[1], argv + 1);
}
END
gcc -O1 -o contained contained.c || fail "gcc failed"
rm -f account-*.explored
./contained "$explore" explore -q -n 200 ./account >out 2>&1
[ $? = 1 ] && grep -q 'addresses cannot be fixed' out && grep -q 'lock(&lock) in withdraws at .*account.c:1[12]' out || fail "contained: $(cat out)"
./contained "$explore" replay account-1.explored >out 2>&1
[ $? = 1 ] && grep -q 'fails again' out || fail "contained replay: $(cat out)"
exit 0
