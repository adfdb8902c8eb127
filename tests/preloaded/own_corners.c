// SPDX-License-Identifier: MIT
// Things that few programs do: signals for signalfd, the base of GS, rights to ports, stopping, a thread's id in place of a process's,
// children by clone().
// libs: -lrt
#define _GNU_SOURCE
#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char* err(long r) { return r == -1 ? strerrorname_np(errno) : "ok"; }

// ---- what is pending for a thread, by signalfd ----

static void show(int fd, const char* what) {
  struct signalfd_siginfo i;
  struct pollfd p = {fd, POLLIN, 0};
  int ready = poll(&p, 1, 0);
  long n = read(fd, &i, sizeof i);
  printf("signalfd, %s: %d %s", what, ready, err(n));
  if (n > 0) printf(", %s, code %d, value %d", strsignal(i.ssi_signo), i.ssi_code, i.ssi_int);
  puts("");
}
static void* signal_descriptors(void* by_number) {
  sigset_t s;
  sigemptyset(&s), sigaddset(&s, SIGUSR1), sigaddset(&s, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  unsigned long word;
  memcpy(&word, &s, sizeof word);
  int fd = by_number ? syscall(SYS_signalfd4, -1, &word, 8, SFD_NONBLOCK) : signalfd(-1, &s, SFD_NONBLOCK | SFD_CLOEXEC);
  show(fd, "nothing");
  pthread_kill(pthread_self(), SIGUSR1);
  show(fd, "pthread_kill");
  raise(SIGUSR1);
  show(fd, "raise");
  union sigval v = {.sival_int = 5};
  pthread_sigqueue(pthread_self(), SIGRTMIN + 3, v);
  show(fd, "pthread_sigqueue");
  kill(getpid(), SIGUSR1);
  show(fd, "kill");
  sigqueue(getpid(), SIGRTMIN + 3, v);
  show(fd, "sigqueue");
  tgkill(getpid(), gettid(), SIGUSR1);
  sigset_t pending;
  sigpending(&pending);
  printf("pending %d", sigismember(&pending, SIGUSR1));
  struct timespec at_once = {0, 0};
  printf(", taken %d", sigtimedwait(&s, NULL, &at_once) == SIGUSR1);
  sigpending(&pending);
  printf(", pending %d\n", sigismember(&pending, SIGUSR1));
  show(fd, "taken");
  close(fd);
  fd = signalfd(-1, &s, 0);
  raise(SIGUSR1);
  struct signalfd_siginfo i;
  printf("blocking: %s", err(read(fd, &i, sizeof i)));
  printf(", wrong size %s\n", err(syscall(SYS_signalfd4, -1, &word, 4, 0)));
  close(fd);
  return NULL;
}

// ---- what only the kernel thread has ----

#if defined(__x86_64__)
extern int arch_prctl(int, unsigned long);
extern int ioperm(unsigned long, unsigned long, int), iopl(int);
static long words[2] = {111, 222};
static void* base_of_gs(void* p) {
  long ok = 0, mine = (long)p & 1, by_number = (long)p & 2;
  unsigned long base = 0, *want = (unsigned long*)&words[mine];
  if (by_number) assert(syscall(SYS_arch_prctl, 0x1001, want) == 0);
  else assert(arch_prctl(0x1001, (unsigned long)want) == 0);
  for (int i = 0; i < 200; i++) {
    sched_yield();
    if (i % 20 == 0) usleep(100);
    syscall(SYS_arch_prctl, 0x1004, &base);
    ok += base == (unsigned long)want;
    long v = 0;
    if (base) asm volatile("mov %%gs:0, %0" : "=r"(v));
    ok += v == words[mine];
  }
  return (void*)ok;
}
static void* no_base(void* p) {
  long bad = 0;
  for (int i = 0; i < 200; i++) {
    sched_yield();
    if (i % 20 == 0) usleep(100);
    unsigned long base = 0;
    bad += arch_prctl(0x1004, (unsigned long)&base) != 0 || base != 0;
  }
  return (void*)bad;
}
static void bases(void) {
  pthread_t t[12];
  for (long i = 0; i < 12; i++) pthread_create(&t[i], NULL, i < 8 ? base_of_gs : no_base, (void*)i);
  for (int i = 0; i < 12; i++) {
    void* r;
    pthread_join(t[i], &r);
    printf("base of GS %ld\n", (long)r);
  }
  printf("ioperm %s", err(ioperm(70000, 1, 1)));
  printf(", iopl %s\n", err(iopl(7)));
}
#else
static void bases(void) {}
#endif

// ---- others ----

static void handler(int s) { (void)s; }
static void* waits(void* p) {
  for (;;) pause();
  return p;
}
static void* stops(void* p) {
  int wire[2];
  char b;
  pipe(wire);
  pid_t pid = fork();
  if (pid == 0) {
    signal(SIGCONT, handler);
    pthread_t t;
    pthread_create(&t, NULL, waits, NULL);
    raise(SIGSTOP);
    while (read(wire[0], &b, 1) != 1) {
    }
    _exit(5);
  }
  int status;
  waitpid(pid, &status, WUNTRACED);
  printf("stopped %#x", status);
  kill(pid, SIGCONT);
  waitpid(pid, &status, WCONTINUED);
  printf(", continued %#x", status);
  write(wire[1], "x", 1);
  waitpid(pid, &status, 0);
  printf(", ended %#x\n", status);
  return p;
}

static void* suspends(void* p) {
  int wire[2];
  pipe(wire);
  char b;
  struct aiocb a = {.aio_fildes = wire[0], .aio_buf = &b, .aio_nbytes = 1};
  const struct aiocb* list[] = {&a};
  aio_read(&a);
  struct timespec t = {0, 5000000};
  printf("aio_suspend %s", err(aio_suspend(list, 1, &t)));
  write(wire[1], "x", 1);
  printf(" %s", err(aio_suspend(list, 1, NULL)));
  printf(", %zd\n", aio_return(&a));
  return p;
}

static void* numbers(void* p) {
  char from[8] = "abc", to[8] = "";
  struct iovec l = {to, 8}, r = {from, 8};
  struct rlimit64 limit;
  printf("kill tid %s", err(kill(gettid(), 0)));
  signal(SIGUSR2, handler);
  printf(" %s, SIGUSR2", err(kill(gettid(), SIGUSR2)));
  printf(", ioprio %ld %ld", syscall(SYS_ioprio_get, 1, 0), syscall(SYS_ioprio_get, 1, gettid()));
  printf(" %s", err(syscall(SYS_ioprio_set, 1, gettid(), 2 << 13 | 3)));
  for (int i = 0; i < 10; i++) usleep(50);
  printf(" %ld %ld", syscall(SYS_ioprio_get, 1, 0), syscall(SYS_ioprio_get, 1, gettid()));
  printf(", getsid %d, getpgid %d", syscall(SYS_getsid, gettid()) == getsid(0), syscall(SYS_getpgid, gettid()) == getpgid(0));
  printf(", prlimit %s", err(syscall(SYS_prlimit64, gettid(), RLIMIT_NOFILE, NULL, &limit)));
  printf(", process_vm_readv %ld %s", syscall(SYS_process_vm_readv, gettid(), &l, 1l, &r, 1l, 0l), to);
  printf(", move_pages %s", err(syscall(SYS_move_pages, gettid(), 0, NULL, NULL, NULL, 0)));
  printf(", nobody's: kill %s", err(kill(1 << 29, 0)));
  printf(", getsid %s\n", err(syscall(SYS_getsid, 1 << 29)));
  return p;
}
static void* has_no_priority(void* p) {
  printf("another's ioprio %ld\n", syscall(SYS_ioprio_get, 1, 0));
  return p;
}

static int child(void* p) { return *(int*)p; }
static void* clones(void* p) {
  char* stack = malloc(65536);
  int seven = 7, flags[] = {SIGCHLD, CLONE_VM | CLONE_VFORK | SIGCHLD, CLONE_VM | SIGCHLD};
  for (int i = 0; i < 3; i++) {
    int status = -1;
    pid_t pid = clone(child, stack + 65536, flags[i], &seven);
    printf("clone %s", err(pid));
    if (pid > 0) waitpid(pid, &status, 0);
    printf(" %#x\n", status);
  }
  return p;
}

int main() {
  sigset_t s;
  sigemptyset(&s), sigaddset(&s, SIGUSR1), sigaddset(&s, SIGRTMIN + 3);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  setvbuf(stdout, NULL, _IONBF, 0);
  pthread_t t;
  struct {
    void* (*f)(void*);
    void* p;
  } all[] = {{signal_descriptors, NULL}, {signal_descriptors, "by number"}, {stops}, {suspends}, {numbers}, {has_no_priority}, {clones}};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) pthread_create(&t, NULL, all[i].f, all[i].p), pthread_join(t, NULL);
  bases();
  return 0;
}
