// SPDX-License-Identifier: MIT
// A filter that allows what libc needs for all of this, and traps everything else. Its handler is called only for what the program asked
// for, and makes up the results. The filter is installed before the first thread, or while there are threads. Some threads block all
// signals, and in one case SIGSYS has no handler.
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum {
  kLibcsFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID,
  kMadeUp = 4711,
};

static const int allowed[] = {
    SYS_read,
    SYS_write,
    SYS_close,
    SYS_fstat,
    SYS_lseek,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_brk,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sched_yield,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_getpid,
    SYS_gettid,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_sigaltstack,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_ppoll,
    SYS_tgkill,
    SYS_tkill,
    SYS_kill,
    SYS_newfstatat,
    SYS_getrandom,
    SYS_wait4,
    SYS_epoll_ctl,
#ifdef SYS_poll
    SYS_poll,
    SYS_epoll_wait,
#else
    SYS_epoll_pwait,
#endif
};

static int make_filter() {
  static struct sock_filter code[256];
  unsigned n = 0;
#define ADD(...) code[n++] = (struct sock_filter)__VA_ARGS__
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
  for (unsigned i = 0; i < sizeof allowed / sizeof *allowed; i++) {
    ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1));
    ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 1, 0));  // allowed as the program makes them
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 4));
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 24));
  ADD(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MSG_DONTWAIT, 0, 1));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435 /* clone3 */, 0, 1));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3));  // threads only
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kLibcsFlags, 6, 0));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 5));  // gives stacks back and makes guards (MADV_GUARD_INSTALL, glibc 2.42)
  ADD(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 16));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 2, 0));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 102, 1, 0));
  ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 103, 0, 1));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  ADD(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP));
  struct sock_fprog filter = {(unsigned short)n, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

static atomic_int asked, others;
static void on_trap(int sig, siginfo_t* info, void* context) {
  ucontext_t* uc = context;
  if (info->si_code != 1 /* SYS_SECCOMP */ ||
      (info->si_syscall != SYS_getpgid && info->si_syscall != SYS_getsid && info->si_syscall != SYS_dup3)) {
    char line[64];
    int n = snprintf(line, sizeof line, "trapped: %d of code %d\n", info->si_syscall, info->si_code);
    others++;
    if (write(1, line, n) != n) _exit(9);
    return;
  }
  asked++;
#if defined(__x86_64__)
  uc->uc_mcontext.gregs[REG_RAX] = kMadeUp;
#else
  uc->uc_mcontext.regs[0] = kMadeUp;
#endif
}
static void handle() {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = on_trap;
  sa.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSYS, &sa, NULL);
}

// Asks by libc's function, by number, and by a name that the library has taken over.
static int asks() { return (getpgid(0) == kMadeUp) + (syscall(SYS_getsid, 0) == kMadeUp) + (dup3(0, 77, 0) == kMadeUp); }

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int blocks_all, wires[2], ends[2];
static atomic_int spinning, stop, caught;
static void catches(int sig) { caught++; }

static struct timespec soon(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  if ((t.tv_nsec += 3000000) >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
  return t;
}
static void* works(void* p) {
  sigset_t all;
  sigfillset(&all);
  if (blocks_all) pthread_sigmask(SIG_BLOCK, &all, NULL);
  struct timespec t = soon(CLOCK_REALTIME);
  pthread_mutex_lock(&m);
  long good = pthread_cond_timedwait(&c, &m, &t) == ETIMEDOUT;
  pthread_mutex_unlock(&m);
  char b = 'x';
  good += write(wires[1], &b, 1) == 1 && read(wires[0], &b, 1) == 1;
  good += send(ends[0], &b, 1, 0) == 1 && recv(ends[1], &b, 1, 0) == 1;
  good += write(ends[1], &b, 1) == 1 && read(ends[0], &b, 1) == 1;
  if (!blocks_all) good += asks();
  return (void*)good;
}
static void* spins(void* p) {
  spinning++;
  while (!stop) {
  }
  return p;
}
static void* sleeps(void* p) {
  spinning++;
  char b;
  return (void*)(long)(read((int)(long)p, &b, 1) == 1);
}
static void* is_hit(void* p) {
  spinning++;
  while (!caught) usleep(500);
  return p;
}

static void* is_cancelled(void* p) {
  spinning++;
  for (;;) usleep(100000);
  return p;
}

enum { kThreads = 12 };
static void all_of_it(const char* when) {
  pthread_t t[kThreads];
  void* r;
  long sum = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, works, NULL);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], &r), sum += (long)r;
  stop = spinning = 0;
  for (int i = 0; i < kThreads; i++) pthread_create(&t[i], NULL, i % 2 ? spins : sleeps, (void*)(long)wires[0]);
  while (spinning < kThreads) {
  }
  stop = 1;
  for (int i = 0; i < kThreads / 2; i++) sum += write(wires[1], "x", 1);
  for (int i = 0; i < kThreads; i++) pthread_join(t[i], &r), sum += (long)r != 0;
  // The library finds out how this libc waits. It does so by calls that the filter need not allow.
  spinning = 0;
  pthread_create(&t[0], NULL, is_cancelled, NULL);
  while (!spinning) usleep(500);
  pthread_cancel(t[0]);
  pthread_join(t[0], &r);
  sum += r == PTHREAD_CANCELED;
  caught = spinning = 0;
  if (!blocks_all) {
    pthread_create(&t[0], NULL, is_hit, NULL);
    while (!spinning) usleep(500);
    pthread_kill(t[0], SIGUSR1);
    pthread_join(t[0], NULL);
  }
  printf("%s: %ld, hit %d\n", when, sum, caught);
}

static void begin() {
  void* frame;
  backtrace(&frame, 1);  // makes libc load what it needs to end a thread
  if (pipe(wires) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) _exit(1);
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = catches;
  sigaction(SIGUSR1, &sa, NULL);
}
static void filter() {
  if (make_filter()) {
    perror("no filter");
    _exit(1);
  }
}

static void before_all() {
  handle();
  filter();
  all_of_it("filter first");
}
// Threads block all signals before there is a filter, and make calls when it comes.
static atomic_int filtered;
enum { kBlocked = 6 };
static void* blocked_before(void* p) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  spinning++;
  char b = 'x';
  long good = 0;
  for (int i = -1; i < 20; i += filtered) {
    good += write(wires[1], &b, 1) == 1 && read(wires[0], &b, 1) == 1;
    if (i < 0) good = 0;
    usleep((long)p);
  }
  return (void*)good;
}
static void later() {
  pthread_t t[kBlocked];
  void* r;
  long sum = 0;
  handle();
  all_of_it("without");
  spinning = 0;
  for (long i = 0; i < kBlocked; i++) pthread_create(&t[i], NULL, blocked_before, (void*)(i * 100));
  while (spinning < kBlocked) usleep(500);
  filter();
  filtered = 1;
  for (int i = 0; i < kBlocked; i++) pthread_join(t[i], &r), sum += (long)r;
  printf("blocked before: %ld\n", sum);
  all_of_it("filter later");
  pthread_exit(NULL);  // the last thread ends the process
}
static void handler_later() {
  filter();
  pthread_t t;
  void* r;
  blocks_all = 1;
  all_of_it("no handler");
  handle();
  all_of_it("handler, and all signals blocked");
  blocks_all = 0;
  pthread_create(&t, NULL, works, NULL);
  pthread_join(t, &r);
  printf("%ld\n", (long)r);
}
// Rings from before the filter are not used under it, since the filter would not see what they do.
static struct sockaddr_in address;
static void* connects(void* p) {
  long good = 0;
  for (int i = 0; i < 10; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    good += connect(fd, (struct sockaddr*)&address, sizeof address) == 0;
    close(fd);
  }
  return (void*)good;
}
static void rings() {
  static struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 425, 0, 2), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 427, 1, 0),
                                      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  socklen_t size = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  pthread_t t[4];
  void* r;
  long sum = 0;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(fd, (struct sockaddr*)&address, size) || listen(fd, 200) || getsockname(fd, (struct sockaddr*)&address, &size)) _exit(1);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, connects, NULL);
    for (int i = 0; i < 4; i++) pthread_join(t[i], &r), sum += (long)r;
    if (round == 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)))
      _exit(1);
  }
  printf("connected %ld\n", sum);
}

static void* makes_it(void* p) {
  printf("makes it\n");
  getpgid(0);
  printf("goes on\n");
  return p;
}
static void without_handler() {
  pthread_t t;
  filter();
  pthread_create(&t, NULL, makes_it, NULL);
  pthread_join(t, NULL);
}

// SIGSYS is like any other signal if a thread or process sends it.
static atomic_int sent;
static void is_sent(int sig) { sent++; }
static void* takes(void* p) {
  sigset_t set;
  int sig = 0;
  sigemptyset(&set);
  sigaddset(&set, SIGSYS);
  spinning++;
  sigwait(&set, &sig);
  return (void*)(long)sig;
}
static void* looks(void* p) {
  while (!stop) write(wires[1], "x", 1), read(wires[0], &(char){0}, 1);
  return p;
}
static void by_somebody() {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = is_sent;
  sigaction(SIGSYS, &sa, NULL);
  pthread_t t[4];
  void* r;
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, looks, NULL);
  int n = 0;
  for (; n < 200; n++) {
    n % 2 ? kill(getpid(), SIGSYS) : pthread_kill(t[n % 4], SIGSYS);
    while (sent <= n) usleep(100);
  }
  stop = 1;
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  printf("sent %d\n", sent == n);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGSYS);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_create(&t[0], NULL, takes, NULL);
  while (!spinning) usleep(1000);
  usleep(10000);
  kill(getpid(), SIGSYS);
  pthread_join(t[0], &r);
  printf("waited for %ld, handled %d\n", (long)r, sent == n);
  kill(getpid(), SIGSYS);
  usleep(10000);
  sigpending(&set);
  printf("pending %d\n", sigismember(&set, SIGSYS));
  sigemptyset(&set);
  sigaddset(&set, SIGSYS);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  printf("and handled %d\n", sent == n + 1);
  signal(SIGSYS, SIG_IGN);
  kill(getpid(), SIGSYS);
  usleep(5000);
  signal(SIGSYS, SIG_DFL);
  pthread_create(&t[0], NULL, looks, NULL);
  printf("ends\n");
  stop = 0;
  kill(getpid(), SIGSYS);
  sleep(5);
}

static void in_child(const char* name, void (*f)()) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    setvbuf(stdout, NULL, _IONBF, 0);
    begin();
    f();
    printf("%s: asked %d times, otherwise %d\n", name, asked, others);
    _exit(0);
  }
  int status;
  waitpid(pid, &status, 0);
  printf("%s: status %d signal %d\n", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

int main() {
  in_child("first", before_all);
  in_child("later", later);
  in_child("handler later", handler_later);
  in_child("without handler", without_handler);
  in_child("rings", rings);
  in_child("sent", by_somebody);
  return 0;
}
