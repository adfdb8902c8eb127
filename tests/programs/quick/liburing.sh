#!/bin/bash
# SPDX-License-Identifier: MIT
# packages: gcc liburing-dev
# Programs that use io_uring by liburing, which makes its system calls by instructions of its own: linked with it, by a plugin that is linked
# with it, and by a plugin that has functions of these names of its own.
. "$(dirname "$0")/../lib.sh"
need gcc
echo '#include <liburing.h>' | gcc -E -xc - >/dev/null 2>&1 || skip "liburing-dev is not installed"
cat >"$TMP/rings.c" <<'END'
#include <liburing.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
enum { kSingleIssuer = 1 << 12, kThreads = 6 };
static unsigned flags;
static int enrolls, with_params;
static atomic_int first_error;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int use(struct io_uring* r, int rounds) {
  int e = 0;
  for (int i = 0; i < rounds && !e; i++) {
    for (int k = 0; k < 3; k++) io_uring_prep_nop(io_uring_get_sqe(r));
    e = io_uring_submit_and_wait(r, 3);
    if (e < 0) return e;
    for (int k = 0; k < 3; k++) {
      struct io_uring_cqe* c;
      if ((e = io_uring_wait_cqe(r, &c))) return e;
      io_uring_cqe_seen(r, c);
    }
    if (i % 3 == 0) usleep(100);
    if (i % 3 == 1)
      for (volatile int k = 0; k < 200000; k++) {
      }
    pthread_mutex_lock(&mutex);
    sched_yield();
    pthread_mutex_unlock(&mutex);
  }
  return 0;
}
static int begin(struct io_uring* r) {
  struct io_uring_params p;
  memset(&p, 0, sizeof p);
  p.flags = flags;
  int e = with_params ? io_uring_queue_init_params(8, r, &p) : io_uring_queue_init(8, r, flags);
  if (!e && enrolls && io_uring_register_ring_fd(r) != 1) e = -1;
  return e;
}
static void* thread(void* p) {
  struct io_uring r;
  int e = begin(&r);
  if (!e) {
    e = use(&r, 60);
    io_uring_queue_exit(&r);
  }
  if (e) first_error = e;
  return p;
}
static void threads(const char* what) {
  pthread_t t[kThreads];
  first_error = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, thread, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  printf("%s: %s\n", what, first_error ? strerror(-first_error) : "works");
}
int all(void) {
  struct io_uring r;
  flags = kSingleIssuer;
  enrolls = 1;
  int main_s = begin(&r);
  flags = enrolls = 0;
  threads("plain");
  enrolls = 1;
  threads("registered");
  enrolls = 0;
  flags = kSingleIssuer;
  threads("of one thread");
  with_params = enrolls = 1;
  threads("both");
  if (!main_s) main_s = use(&r, 100);
  printf("main's: %s\n", main_s ? strerror(-main_s) : "works");
  return 0;
}
END
cat >"$TMP/linked.c" <<'END'
int all(void);
int main(void) { return all(); }
END
cat >"$TMP/plugged.c" <<'END'
#include <dlfcn.h>
#include <stdio.h>
int main(int n, char** names) {
  for (int i = 1; i < n; i++) {
    void* plugin = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    int (*all)(void) = plugin ? (int (*)(void))dlsym(plugin, "all") : 0;
    if (!all) return puts(dlerror()), 1;
    printf("%d\n", all());
  }
}
END
cat >"$TMP/own.c" <<'END'
int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) { return (int)entries + (ring ? 1 : 0) + (int)flags; }
int all(void) { return io_uring_queue_init(40, (void*)1, 1) * io_uring_queue_init(1, 0, 0); }
END
gcc -O2 -o "$TMP/linked" "$TMP/linked.c" "$TMP/rings.c" -luring -pthread &&
  gcc -O2 -fPIC -shared -o "$TMP/plugin.so" "$TMP/rings.c" -luring -pthread && gcc -O2 -fPIC -shared -o "$TMP/own.so" "$TMP/own.c" &&
  gcc -O2 -o "$TMP/plugged" "$TMP/plugged.c" -pthread || fail "gcc failed"
compare 24 "$TMP/linked"
compare 24 "$TMP/plugged" "$TMP/plugin.so"
compare 24 "$TMP/plugged" "$TMP/own.so" "$TMP/plugin.so"
compare 0 "$TMP/plugged" "$TMP/own.so"
cat "$TMP/fiber.out"
