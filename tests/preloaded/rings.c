// SPDX-License-Identifier: MIT
// io_uring by syscall(): rings that only the thread which made them may use, and rings that a thread has registered. The kernel refuses them
// to all others. Main makes its rings before it has threads.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "go_elsewhere.h"

enum { kSingleIssuer = 1 << 12, kDeferTaskrun = 1 << 13, kDisabled = 1 << 6, kRegistered = 1 << 4 };
enum { kEnableRings = 12, kRegisterRings = 20, kThreads = 8, kRounds = 60 };

struct ring {
  int fd, enter_fd;
  unsigned enter_flags;
  char* all;
  struct io_uring_sqe* entries;
  struct io_uring_params p;
};

static long of_kernel(long r) { return r == -1 ? -errno : r; }

static int make(struct ring* r, unsigned flags) {
  memset(r, 0, sizeof *r);
  r->p.flags = flags;
  long fd = of_kernel(syscall(SYS_io_uring_setup, 4, &r->p));
  if (fd < 0) return (int)fd;
  r->fd = r->enter_fd = (int)fd;
  r->all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
  r->entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQES);
  assert(r->all != MAP_FAILED && r->entries != MAP_FAILED && r->p.features & IORING_FEAT_SINGLE_MMAP);
  return 0;
}
static void discard(struct ring* r) {
  munmap(r->all, 4096);
  munmap(r->entries, 4096);
  close(r->fd);
}
static int enroll(struct ring* r) {  // the kernel's name for it is registering
  struct io_uring_rsrc_update u = {.offset = ~0u, .data = (unsigned)r->fd};
  long n = of_kernel(syscall(SYS_io_uring_register, r->fd, kRegisterRings, &u, 1));
  if (n != 1) return (int)n;
  r->enter_fd = (int)u.offset;
  r->enter_flags = kRegistered;
  return 0;
}

static _Atomic unsigned* at(struct ring* r, unsigned offset) { return (_Atomic unsigned*)(r->all + offset); }

// Does nothing, by the ring. Returns 0 or a negative errno value.
static int use(struct ring* r) {
  unsigned tail = *at(r, r->p.sq_off.tail), place = tail & *at(r, r->p.sq_off.ring_mask);
  r->entries[place] = (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = tail + 7};
  *at(r, r->p.sq_off.array + 4 * place) = place;
  *at(r, r->p.sq_off.tail) = tail + 1;
  long n = of_kernel(syscall(SYS_io_uring_enter, r->enter_fd, 1, 1, IORING_ENTER_GETEVENTS | r->enter_flags, NULL, 0));
  if (n < 0) return (int)n;
  unsigned head = *at(r, r->p.cq_off.head);
  assert(n == 1 && head != *at(r, r->p.cq_off.tail));
  struct io_uring_cqe* e = (struct io_uring_cqe*)(r->all + r->p.cq_off.cqes) + (head & *at(r, r->p.cq_off.ring_mask));
  assert(e->res == 0 && e->user_data == tail + 7);
  *at(r, r->p.cq_off.head) = head + 1;
  return 0;
}

static void show(const char* what, int r) { printf("%s: %s\n", what, r < 0 ? strerrorname_np(-r) : "works"); }

static unsigned flags;
static int registered, disabled;
static atomic_int first_error;
static int use_often(struct ring* r, int begin) {
  int e = 0;
  for (int i = 0; i < kRounds && !e; i++) {
    e = use(r);
    go_elsewhere(begin + i);
  }
  return e;
}
static void* uses(void* p) {
  struct ring r;
  int e = make(&r, flags | (disabled ? kDisabled : 0));
  if (!e) {
    if (disabled) assert(syscall(SYS_io_uring_register, r.fd, kEnableRings, NULL, 0) == 0);
    go_elsewhere((int)(long)p);
    if (registered) e = enroll(&r);
    if (!e) e = use_often(&r, (int)(long)p);
    discard(&r);
  }
  if (e) first_error = e;
  return NULL;
}
static void threads(const char* what) {
  pthread_t t[kThreads];
  first_error = 0;
  for (long i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, uses, (void*)i) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], NULL);
  show(what, first_error);
}

static void* enables(void* p) {
  struct ring* r = p;
  assert(syscall(SYS_io_uring_register, r->fd, kEnableRings, NULL, 0) == 0);
  return (void*)(long)use_often(r, r->fd);
}
static struct ring given[kThreads];
static void* makes(void* p) {
  int e = 0;
  for (int i = 0; i < kThreads && !e; i++) e = make(&given[i], kSingleIssuer | kDisabled);
  *(int*)p = e;
  return p;
}
static void enabled_by_others(void) {
  pthread_t t[kThreads];
  int e;
  pthread_create(&t[0], NULL, makes, &e);
  pthread_join(t[0], NULL);
  if (!e) {
    for (int i = 0; i < kThreads; i++) assert(pthread_create(&t[i], NULL, enables, &given[i]) == 0);
    for (int i = 0; i < kThreads; i++) {
      void* result;
      pthread_join(t[i], &result);
      if (result) e = (int)(long)result;
      discard(&given[i]);
    }
  }
  show("enabled by others than the one that made them", e);
}

static void* use_main_s(void* p) { return (void*)(long)use(p); }

int main() {
  struct ring plain, single, known;
  int without = make(&plain, 0), with_single = make(&single, kSingleIssuer | kDeferTaskrun);
  show("a plain ring", without);
  if (without) return 0;
  int with_known = make(&known, 0);
  if (!with_known) with_known = enroll(&known);

  // Other threads want CPUs meanwhile.
  flags = 0;
  threads("plain rings of threads");
  registered = 1;
  threads("rings that threads have registered");
  registered = 0;
  flags = kSingleIssuer;
  threads("rings of one thread each");
  flags |= kDeferTaskrun;
  threads("the same, with deferred work");
  registered = 1;
  threads("the same, registered");
  registered = 0;
  disabled = 1;
  threads("the same, enabled later");
  enabled_by_others();

  pthread_t t[2];
  disabled = 0;
  for (long i = 0; i < 2; i++) assert(pthread_create(&t[i], NULL, uses, (void*)i) == 0);
  show("main's plain ring", use_often(&plain, 0));
  if (!with_known) with_known = use_often(&known, 1);
  show("main's registered ring", with_known);
  if (!with_single) with_single = use_often(&single, 2);
  show("main's own ring", with_single);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  void* r;
  if (!with_single) {
    assert(pthread_create(&t[0], NULL, use_main_s, &single) == 0);
    pthread_join(t[0], &r);
    show("main's own ring, by another", (int)(long)r);
  }
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    registered = 1;
    threads("in a child");
    fflush(stdout);
    _exit(0);
  }
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
