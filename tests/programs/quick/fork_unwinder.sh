#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc
# A process forks while another thread loads libgcc_s. Its child can end a thread all the same, which on libc's own threads it cannot. The
# libgcc_s here has a function whose address it takes half a second to find, and says when that begins.
. "$(dirname "$0")/../lib.sh"
need gcc
cat >"$TMP/slow.c" <<'END'
#include <sys/syscall.h>
#include <time.h>
static long call(long nr, long a, long b, long c) {
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
#else
  register long x8 __asm__("x8") = nr, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#endif
}
static int one(void) { return 1; }
// The loader calls this in the midst of its work. No function of libc may be called here.
static int (*resolve(void))(void) {
  call(SYS_write, 9, (long)"x", 1);
  struct timespec half_second = {0, 500000000};
  call(SYS_nanosleep, (long)&half_second, 0, 0);
  return one;
}
int slow(void) __attribute__((ifunc("resolve")));
int (*of_slow)(void) = slow;
END
cat >"$TMP/forks.c" <<'END'
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void* ends(void* p) { pthread_exit(p); }
static volatile int requested;
static void* ends_in_libc(void* p) {  // there the request is found
  while (!requested) {
  }
  open("fifo", O_RDONLY);
  return p;
}
static void* cancels(void* p) {
  pthread_t t;
  pthread_create(&t, NULL, ends_in_libc, NULL);
  pthread_cancel(t);
  requested = 1;
  pthread_join(t, NULL);
  return p;
}
int main(int argc, char** argv) {
  int loading[2], status;
  char c;
  if (pipe(loading) || dup2(loading[1], 9) != 9) return 1;
  pthread_t t;
  pthread_create(&t, NULL, argc > 1 ? cancels : ends, NULL);
  read(loading[0], &c, 1);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    pthread_create(&t, NULL, ends, NULL);
    pthread_join(t, NULL);
    _exit(7);
  }
  waitpid(child, &status, 0);
  pthread_join(t, NULL);
  printf("status %#x\n", status);
  return 0;
}
END
mkdir "$TMP/lib"
# The slow library needs the real one, by another name. An empty library gives it that name when it is linked.
echo | gcc -shared -xc - -Wl,-soname,libgcc_real.so -o "$TMP/lib/libgcc_real.so" &&
  gcc -O2 -fPIC -shared -Wl,-soname,libgcc_s.so.1 -o "$TMP/lib/libgcc_s.so.1" "$TMP/slow.c" -Wl,--no-as-needed "$TMP/lib/libgcc_real.so" &&
  cp "$(gcc -print-file-name=libgcc_s.so.1)" "$TMP/lib/libgcc_real.so" || fail "libgcc_s cannot be made"
gcc -O2 -w -pthread -o "$TMP/forks" "$TMP/forks.c" || fail "gcc failed"
export LD_LIBRARY_PATH=$TMP/lib
cd "$TMP" && mkfifo fifo
for workers in 1 2 16; do
  for by in "" cancel; do
    fiber $workers ./forks $by >out || fail "exit status $? on $workers workers $by"
    [ "$(cat out)" = "status 0x700" ] || fail "$(cat out) on $workers workers $by"
  done
done
