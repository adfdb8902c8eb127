// SPDX-License-Identifier: MIT
// expect: preloaded only
// The kernel's notes on where a thread runs (rseq) are of no use to fibers, which move. Each thread's area says that nothing is registered,
// and the kernel writes nothing there.
#define _GNU_SOURCE
#include <aio.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
#if defined(__x86_64__)
enum { kSignature = 0x53053053 };
#else
enum { kSignature = 0xd428bc00 };
#endif

static char* area(void) { return (char*)__builtin_thread_pointer() + __rseq_offset; }
static int cpu_noted(void) { return &__rseq_offset ? ((volatile int32_t*)area())[1] : -2; }
// Returns true if the caller's kernel thread has the tid that gettid() returns. Only NPTL's threads do, and the initial thread before it
// moves.
static int is_native(void) {
  char text[100] = {0};
  assert(readlink("/proc/thread-self", text, sizeof text - 1) > 0);
  return atoi(strrchr(text, '/') + 1) == gettid();
}
static void be_busy(void) {
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do {
    assert(cpu_noted() == -2);
    sched_yield();
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 30000000);
}

static void* thread(void* p) {
  assert(cpu_noted() == -2 && sched_getcpu() >= 0);
  be_busy();
  usleep(100);
  assert(cpu_noted() == -2);
  return p;
}
static void threads(void) {
  pthread_t t[8];
  for (int i = 0; i < 8; i++) assert(pthread_create(&t[i], NULL, thread, NULL) == 0);
  be_busy();
  usleep(1000);  // the kernel writes there on the way back from calls and after interrupts
  assert(cpu_noted() == -2 && sched_getcpu() >= 0);
  for (int i = 0; i < 8; i++) assert(pthread_join(t[i], NULL) == 0);
  assert(cpu_noted() == -2);
}
static void in_child(void (*f)(void)) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    f();
    _exit(0);
  }
  int status;
  while (waitpid(pid, &status, 0) != pid) {
  }
  assert(status == 0);
}
static void* forks(void* p) {
  in_child(threads);
  return p;
}

// A thread that libc makes by itself is registered if its maker is. If a fiber makes it, it is not.
static int told;
static void notified(union sigval v) {
  assert(is_native() && cpu_noted() == -2);
  __atomic_store_n(&told, 1, __ATOMIC_RELEASE);
}
static void* libcs_own(void* p) {
  char c = 0;
  struct aiocb a = {.aio_fildes = open("/dev/null", O_WRONLY), .aio_buf = &c, .aio_nbytes = 1};
  a.aio_sigevent.sigev_notify = SIGEV_THREAD;
  a.aio_sigevent.sigev_notify_function = notified;
  told = 0;
  assert(aio_write(&a) == 0);
  while (!__atomic_load_n(&told, __ATOMIC_ACQUIRE)) usleep(100);
  assert(aio_return(&a) == 1);
  close(a.aio_fildes);
  return p;
}

static void threads_and_forks(void) {
  threads();
  pthread_t maker;
  assert(pthread_create(&maker, NULL, libcs_own, NULL) == 0 && pthread_join(maker, NULL) == 0);
  in_child(threads);
  pthread_t t;
  assert(pthread_create(&t, NULL, forks, NULL) == 0 && pthread_join(t, NULL) == 0);
  threads();
}

static long rseq(long length, int flags) {
  long r;
#if defined(__x86_64__)
  register long r10 __asm__("r10") = kSignature;
  __asm__ volatile("syscall" : "=a"(r) : "0"(SYS_rseq), "D"(area()), "S"(length), "d"(flags), "r"(r10) : "rcx", "r11", "memory");
#else
  register long x8 __asm__("x8") = SYS_rseq, x0 __asm__("x0") = (long)area(), x1 __asm__("x1") = length, x2 __asm__("x2") = flags,
                   x3 __asm__("x3") = kSignature;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  r = x0;
#endif
  return r;
}
// As on kernels with libc 2.41 whose areas are larger than those of 2024.
static long length = 32;
static void longer_area(void) {
  if (cpu_noted() < 0) return;  // this libc or kernel has none
  assert(rseq(32, 1) == 0);
  long r = rseq(length, 0);
  if (r == -EINVAL && length > 32) return;  // before Linux 6.3 there are no such areas
  assert(r == 0 && cpu_noted() >= 0);
  threads_and_forks();
}

static void* is_nptls(void* p) {
  assert(is_native());
  return p;
}
// If the kernel does not unregister the initial thread's area, only NPTL can run threads.
static int refused(void) {
  if (cpu_noted() < 0) return 0;
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rseq, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
  pthread_t t[4];
  for (int i = 0; i < 4; i++) assert(pthread_create(&t[i], NULL, is_nptls, NULL) == 0);
  for (int i = 0; i < 4; i++) assert(pthread_join(t[i], NULL) == 0);
  assert(cpu_noted() >= 0);  // as before
  return 0;
}

// Runs this program with one argument. What it writes to stderr goes to `text`.
static void run(const char* what, char* text, size_t size) {
  int ends[2];
  assert(pipe(ends) == 0);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 2);
    execl("/proc/self/exe", "rseq", what, NULL);
    _exit(127);
  }
  close(ends[1]);
  size_t n = 0;
  for (ssize_t r; n < size - 1 && (r = read(ends[0], text + n, size - 1 - n)) > 0;) n += r;
  text[n] = 0;
  close(ends[0]);
  int status;
  assert(waitpid(pid, &status, 0) == pid);
  if (status) printf("%s: status %#x: %s\n", what, status, text);
  assert(status == 0);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "refused") == 0) return refused();
  if (argc > 1) {
    threads_and_forks();
    return 0;
  }
  static char text[4096];
  in_child(threads_and_forks);
  static const long lengths[] = {33, 40, 64, 100, 1000};
  for (int i = 0; i < 5; i++) {
    length = lengths[i];
    in_child(longer_area);
  }
  puts("whatever its length: given up");

  // libc reports by itself that it registers no area.
  setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
  run("none", text, sizeof text);
  unsetenv("GLIBC_TUNABLES");
  puts("none registered: nobody takes what is there for a CPU");

  setenv("FIBERTHREAD_VERBOSE", "1", 1);
  run("refused", text, sizeof text);
  assert(cpu_noted() < 0 || strstr(text, "rseq"));
  puts("not given up: NPTL");
  return 0;
}
