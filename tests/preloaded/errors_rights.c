// SPDX-License-Identifier: MIT
// What lack of rights and of room gives. Each case runs in a child that is another user's, or has little room, on whatever thread the cases
// run.
#include "errors.h"
#include "old_libc.h"

#include <dlfcn.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

extern int __sched_setscheduler(int, int, const struct sched_param*), __sched_getscheduler(int), __sched_getparam(int, struct sched_param*);
extern int __sched_get_priority_max(int), __sched_get_priority_min(int);
extern pid_t _Fork(void), __vfork(void);
extern int __ppoll_chk(struct pollfd*, nfds_t, const struct timespec*, const sigset_t*, size_t);
extern int capset(void*, void*), capget(void*, void*);
extern pid_t __getpgid(pid_t);
extern int __setpgid(pid_t, pid_t);
int open_pidfd(pid_t, unsigned) __asm__("pidfd_open") __attribute__((weak));

static int nothing(void* p) { return 0; }
static void* waits_for(void* s) {
  sem_wait(s);
  return NULL;
}
static char child_stack[65536];
static char theirs[64];  // the name of root's semaphore

static void* on_thread(void* p) {
  ((void (*)(void))p)();
  return p;
}

#define OPEN(state, ...) show("pidfd_open", state, (errno = 0, open_pidfd(__VA_ARGS__)) == -1 ? errno : 0)

// There are none at all where the processor has none.
static void no_key_left(void) {
  int keys[16], n = 0;
  while (n < 16 && (keys[n] = pkey_alloc(0, 0)) >= 0) n++;
  assert(n < 16);
  FAILS("no key left", pkey_alloc, 0, 0);
  while (n > 0) pkey_free(keys[--n]);
}

// The calls that take an id, by all that it may name.
static void about_processes(void) {
  static const struct {
    const char* name;
    pid_t id;
  } whose[] = {{"0", 0}, {"nobody", 0x3ffffff0}, {"-1", -1}};
  pid_t id = gettid();
  struct rlimit limit;
  char from[4] = "abc", to[4];
  struct iovec here = {to, 4}, there = {from, 4}, nowhere = {(void*)8, 4};
  for (int i = 0; i < 3; i++) {
    FAILS(whose[i].name, getpgid, whose[i].id);
    FAILS(whose[i].name, __getpgid, whose[i].id);
    FAILS(whose[i].name, getsid, whose[i].id);
    FAILS(whose[i].name, setpgid, whose[i].id, i ? 0 : -1);
    FAILS(whose[i].name, __setpgid, whose[i].id, i ? 0 : -1);
    FAILS(whose[i].name, prlimit, whose[i].id, RLIMIT_NOFILE, NULL, &limit);
    FAILS(whose[i].name, prlimit64, whose[i].id, RLIMIT_NOFILE, NULL, (void*)&limit);
    FAILS(whose[i].name, process_vm_readv, whose[i].id, &here, 1, &there, 1, 0);
    FAILS(whose[i].name, process_vm_writev, whose[i].id, &here, 1, &there, 1, 0);
  }
  FAILS("own", getpgid, id);
  FAILS("own", getsid, id);
  FAILS("no such group", setpgid, 0, 0x3ffffff0);
  FAILS("no such group", __setpgid, 0, 0x3ffffff0);
  int closed_by_exec[2];
  assert(pipe2(closed_by_exec, O_CLOEXEC) == 0);
  pid_t other = fork();
  if (other == 0) {
    execl("/bin/sleep", "sleep", "100", (char*)NULL);
    _exit(1);
  }
  close(closed_by_exec[1]);
  char none;
  assert(read(closed_by_exec[0], &none, 1) == 0);
  close(closed_by_exec[0]);
  FAILS("after exec", setpgid, other, 0);
  FAILS("after exec", __setpgid, other, 0);
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
  FAILS("own", prlimit, id, RLIMIT_NOFILE, NULL, &limit);
  FAILS("no such limit", prlimit, id, 99, NULL, &limit);
  FAILS("no such limit", prlimit64, id, 99, NULL, (void*)&limit);
  FAILS("bad memory", prlimit, id, RLIMIT_NOFILE, NULL, (void*)8);
  FAILS("bad memory", prlimit64, id, RLIMIT_NOFILE, (void*)8, NULL);
  limit = (struct rlimit){2, 1};
  FAILS("more than the most", prlimit, id, RLIMIT_NOFILE, &limit, NULL);
  FAILS("own", process_vm_readv, id, &here, 1, &there, 1, 0);
  FAILS("own", process_vm_writev, id, &here, 1, &there, 1, 0);
  FAILS("flags", process_vm_readv, id, &here, 1, &there, 1, 1);
  FAILS("flags", process_vm_writev, id, &here, 1, &there, 1, 1);
  FAILS("bad memory", process_vm_readv, id, &here, 1, &nowhere, 1, 0);
  FAILS("bad memory", process_vm_writev, id, &here, 1, &nowhere, 1, 0);
  if (!since(36)) return;
  int fd = open_pidfd(getpid(), 0);
  show("pidfd_open", "own process", fd < 0 ? errno : 0);
  close(fd);
  OPEN("flags", getpid(), 1 << 20);
  OPEN("0", 0, 0);
  OPEN("nobody", 0x3ffffff0, 0);
}

static void ids(void) {
  gid_t groups[4] = {1, 2, 3, 4};
  FAILS("root", setuid, 0);
  FAILS("root", seteuid, 0);
  FAILS("root", setreuid, 0, 0);
  FAILS("root, effective", setreuid, -1, 0);
  FAILS("root", setresuid, 0, 0, 0);
  FAILS("root, saved", setresuid, -1, -1, 0);
  FAILS("root", setgid, 0);
  FAILS("root", setegid, 0);
  FAILS("root", setregid, 0, 0);
  FAILS("root", setresgid, 0, 0, 0);
  FAILS("4 groups", setgroups, 4, groups);
  FAILS("no rights", initgroups, "nobody", 0);
  FAILS("own", setuid, getuid());
  FAILS("own", seteuid, getuid());
  FAILS("nothing", setreuid, -1, -1);
  FAILS("nothing", setresuid, -1, -1, -1);
  FAILS("own", setgid, getgid());
  FAILS("own", setegid, getgid());
  FAILS("nothing", setregid, -1, -1);
  FAILS("nothing", setresgid, -1, -1, -1);
  FAILS("-1", setuid, -1);
  FAILS("-1", seteuid, -1);
  FAILS("-1", setgid, -1);
  FAILS("-1", setegid, -1);
}
static void rights(void) {
  struct sched_param p = {0}, high = {1};
  cpu_set_t all;
  memset(&all, 255, sizeof all);
  FAILS("root's process", kill, 1, 0);
  FAILS("root's process, 65", kill, 1, 65);
  FAILS("root's process", sigqueue, 1, 0, (union sigval){0});
  FAILS("root's process", tgkill, 1, 1, 0);
  FAILS("root's process", sched_setaffinity, 1, sizeof all, &all);
  FAILS("root's process", sched_setscheduler, 1, SCHED_BATCH, &p);
  FAILS("root's process", __sched_setscheduler, 1, SCHED_BATCH, &p);
  FAILS("root's process", sched_setparam, 1, &p);
  FAILS("root's process", setpriority, PRIO_PROCESS, 1, 5);
  FAILS("real time", __sched_setscheduler, 0, SCHED_FIFO, &high);
  FAILS("-5", nice, -5);
  show("sem_open", "root's", sem_open(theirs, 0) == SEM_FAILED ? errno : 0);
  FAILS("root's", sem_unlink, theirs);
  FAILS("a file system of its own", unshare, CLONE_NEWNS);
  FAILS("a file system of its own", clone, nothing, child_stack + sizeof child_stack, CLONE_NEWNS | SIGCHLD, NULL);
  int names = open("/proc/self/ns/uts", O_RDONLY);
  FAILS("the same names", setns, names, CLONE_NEWUTS);
  close(names);
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct all_of_them[2] = {{~0u, ~0u, 0}, {~0u, ~0u, 0}};
  FAILS("all", capset, &header, all_of_them);
  struct rlimit more = {1000, RLIM_INFINITY};
  FAILS("more than allowed", prlimit, 0, RLIMIT_NOFILE, &more, NULL);
  FAILS("root's process", prlimit, 1, RLIMIT_NOFILE, NULL, &more);
  FAILS("more than allowed", prlimit64, 0, RLIMIT_NOFILE, (void*)&more, NULL);
  struct rlimit page = {4096, 4096}, none = {0, 0};
  if (setrlimit(RLIMIT_MEMLOCK, &page)) perror("setrlimit");
  FAILS("more than allowed", mlockall, MCL_CURRENT);
  if (setrlimit(RLIMIT_MEMLOCK, &none)) perror("setrlimit");
  FAILS("not allowed", mlockall, MCL_FUTURE);
  struct iovec here = {&header, sizeof header};
  FAILS("root's process", process_vm_readv, 1, &here, 1, &here, 1, 0);
  FAILS("root's process", process_vm_writev, 1, &here, 1, &here, 1, 0);
  FAILS("root's process", ptrace, PTRACE_ATTACH, 1, NULL, NULL);
}
// A thread that was real-time before it became another user's.
static void raised(void) {
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_RTPRIO, &none);
  struct sched_param p = {1};
  CASE("1", pthread_setschedparam, pthread_self(), SCHED_FIFO, &p);
  if (setresuid(65534, 65534, 65534) != 0) puts("no other user");
  CASE("5, of another user", pthread_setschedprio, pthread_self(), 5);
}
static void other_user(void) {
  if (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) puts("no other user");
  // Runs on main and on a thread.
  ids();
  rights();
  elsewhere(on_thread, ids);
  elsewhere(on_thread, rights);
}

static void no_processes(void) {
  struct rlimit l = {0, 0};
  setresuid(65534, 65534, 65534);
  setrlimit(RLIMIT_NPROC, &l);
  FAILS("no processes", fork);
  FAILS("no processes", _Fork);
  FAILS("no processes", vfork);
  FAILS("no processes", __vfork);
  FAILS("no processes", clone, nothing, child_stack + sizeof child_stack, SIGCHLD, NULL);
}
static void clones(void) {
  FAILS("no function", clone, NULL, child_stack + sizeof child_stack, SIGCHLD, NULL);
  FAILS("no stack", clone, nothing, NULL, SIGCHLD, NULL);
  FAILS("CLONE_THREAD alone", clone, nothing, child_stack + sizeof child_stack, CLONE_THREAD, NULL);
}
static void no_signals(void) {
  struct rlimit l = {0, 0};
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  setrlimit(RLIMIT_SIGPENDING, &l);
  timer_t t;
  FAILS("no pending signals", timer_create, CLOCK_MONOTONIC, NULL, &t);
  FAILS("no pending signals", sigqueue, getpid(), SIGRTMIN, (union sigval){0});
  CASE("no pending signals", pthread_sigqueue, pthread_self(), SIGRTMIN, (union sigval){0});
  CASE("no pending signals", pthread_kill, pthread_self(), SIGRTMIN);
  FAILS("no pending signals", tgkill, getpid(), gettid(), SIGRTMIN);
  FAILS("no pending signals, SIGUSR1", sigqueue, getpid(), SIGUSR1, (union sigval){0});
  CASE("no pending signals, SIGUSR1", pthread_sigqueue, pthread_self(), SIGUSR1, (union sigval){0});
  siginfo_t info;
  struct timespec zero = {0, 0};
  FAILS("nothing came", sigtimedwait, &set, &info, &zero);
  show_value("sigtimedwait", "but SIGUSR1", sigtimedwait(&usr1, &info, &zero));
}
static void no_descriptors(void) {
  struct rlimit l = {3, 3};
  setrlimit(RLIMIT_NOFILE, &l);
  show("sem_open", "no descriptors", sem_open("/new-errors_rights", O_CREAT, 0600, 1) == SEM_FAILED ? errno : 0);
  struct timespec zero = {0, 0};
  FAILS("too many", ppoll, (void*)child_stack, 4, &zero, NULL);
}

static void long_names(void) {
  static const int lengths[] = {250, 251, 252, 253, 254, 255, 256, 300};
  for (int i = 0; i < 8; i++) {
    static char name[400];
    memset(name, 0, sizeof name);
    memset(name, 'x', lengths[i]);
    name[0] = '/';
    const char* state = format("%d characters", lengths[i]);
    show("sem_open", format("%s, absent", state), sem_open(name, 0) == SEM_FAILED ? errno : 0);
    show("sem_open", state, sem_open(name, O_CREAT, 0600, 1) == SEM_FAILED ? errno : 0);
    FAILS(state, sem_unlink, name);
  }
}

static void bad_memory(void) {
  void* volatile bad = (void*)8;  // volatile, since compilers warn of bad pointers that they can see
  cpu_set_t set;
  struct timespec zero = {0, 0};
  struct epoll_event event;
  FAILS("bad memory", getrusage, RUSAGE_SELF, bad);
  FAILS("bad memory", getrusage, RUSAGE_THREAD, bad);
  FAILS("bad memory", nanosleep, bad, NULL);
  CASE("bad memory", clock_nanosleep, CLOCK_MONOTONIC, 0, bad, NULL);
  FAILS("bad memory", ppoll, bad, 1, &zero, NULL);
  FAILS("bad memory", sched_getaffinity, 0, sizeof set, bad);
  CASE("bad memory", pthread_setaffinity_np, pthread_self(), sizeof set, bad);
  CASE("bad memory", pthread_getaffinity_np, pthread_self(), sizeof set, bad);
  // The time of other clocks is written without the kernel, so bad memory is tried with these clocks.
  clockid_t own;
  pthread_getcpuclockid(pthread_self(), &own);
  FAILS("the process's, bad memory", clock_gettime, CLOCK_PROCESS_CPUTIME_ID, bad);
  FAILS("the thread's, bad memory", clock_gettime, CLOCK_THREAD_CPUTIME_ID, bad);
  FAILS("own, bad memory", clock_gettime, own, bad);
  FAILS("the process's, bad memory", clock_getres, CLOCK_PROCESS_CPUTIME_ID, bad);
  FAILS("the thread's, bad memory", clock_getres, CLOCK_THREAD_CPUTIME_ID, bad);
  FAILS("own, bad memory", clock_getres, own, bad);
  FAILS("bad memory", __ppoll_chk, bad, 1, &zero, NULL, 8);
  FAILS("bad time", __ppoll_chk, NULL, 0, &bad_high, NULL, 0);
  FAILS("bad memory", sched_getparam, 0, bad);
  FAILS("bad memory", sched_rr_get_interval, 0, bad);
  FAILS("bad memory", prctl, PR_SET_NAME, bad);
  FAILS("9999", prctl, 9999, 0, 0, 0, 0);
  FAILS("nothing", mlockall, 0);
  FAILS("on fault only", mlockall, MCL_ONFAULT);
  FAILS("99", mlockall, 99);
  FAILS("bad memory", setgroups, 1, bad);
  FAILS("a million", setgroups, 1000000, bad);
  FAILS("bad memory", capset, bad, bad);
  struct __user_cap_header_struct header = {0x12345678, 0};
  struct __user_cap_data_struct data[2] = {};
  FAILS("no such version", capset, &header, data);
  header.version = 0x12345678;
  FAILS("no such version", capget, &header, data);
  header = (struct __user_cap_header_struct){_LINUX_CAPABILITY_VERSION_3, 0};
  FAILS("own", capget, &header, data);
  FAILS("bad memory", capget, bad, data);
  FAILS("bad memory for the answer", capget, &header, bad);
  header.pid = 0x3ffffff0;
  FAILS("nobody", capget, &header, data);
  header.pid = -1;
  FAILS("-1", capget, &header, data);
  about_processes();
  int names = open("/proc/self/ns/uts", O_RDONLY);
  FAILS("of another kind", setns, names, CLONE_NEWNET);
  close(names);
  FAILS("flags", pkey_alloc, 1, 0);
  FAILS("bad rights", pkey_alloc, 0, 77);
  no_key_left();
  FAILS("bad key", pkey_set, 77, 0);
  FAILS("bad rights", pkey_set, 1, 77);
  FAILS("itself", ptrace, PTRACE_ATTACH, getpid(), NULL, NULL);
  FAILS("1", unshare, 1);
  FAILS("-1", setns, -1, 0);
  FAILS("nobody", ptrace, PTRACE_PEEKDATA, 0x3fffffff, NULL, NULL);
  int pipes[2], epoll = epoll_create1(0), file = open("/dev/null", O_RDONLY);
  assert(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
  event = (struct epoll_event){EPOLLIN};
  epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event);
  FAILS("bad memory", epoll_pwait, epoll, bad, 1, 0, NULL);
  FAILS("bad memory", epoll_pwait2, epoll, bad, 1, &zero, NULL);
  FAILS("no events", epoll_pwait, epoll, &event, 0, 0, NULL);
  FAILS("no events", epoll_pwait2, epoll, &event, 0, &zero, NULL);
  FAILS("no epoll", epoll_pwait, file, &event, 1, 0, NULL);
  FAILS("no epoll", epoll_pwait2, file, &event, 1, &zero, NULL);
  FAILS("no descriptor", epoll_pwait, -1, &event, 1, 0, NULL);
  FAILS("no descriptor", epoll_pwait2, -1, &event, 1, &zero, NULL);
  for (unsigned i = 1; i < MOMENTS; i++) {
    FAILS(moments[i].name, ppoll, NULL, 0, moments[i].t, NULL);
    FAILS(moments[i].name, pselect, 0, NULL, NULL, NULL, moments[i].t, NULL);
    FAILS(moments[i].name, epoll_pwait2, epoll, &event, 1, moments[i].t, NULL);
    FAILS(moments[i].name, nanosleep, moments[i].t, NULL);
  }
  fd_set closed;
  FD_ZERO(&closed);
  int gone = dup(0);  // a low number, since the kernel looks at none beyond the table
  close(gone);
  FD_SET(gone, &closed);
  FAILS("-1", pselect, -1, NULL, NULL, NULL, &zero, NULL);
  FAILS("a closed descriptor", pselect, gone + 1, &closed, NULL, NULL, &zero, NULL);
  close(pipes[0]), close(pipes[1]), close(epoll), close(file);
}

// Returns functions that old programs and libraries call, and that cannot be linked any more.
static void* old(const char* name) {
  void* f = dlsym(RTLD_DEFAULT, name);  // the library's functions have no version, and libc's are only found with theirs
  static const char* const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.4", "GLIBC_2.3.4"};
  for (int i = 0; !f && i < 4; i++) f = dlvsym(RTLD_DEFAULT, name, versions[i]);
  assert(f);
  return f;
}
static void old_names(void) {
#define OLD(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))old(#name)
  OLD(__pthread_mutex_init, pthread_mutex_t*, const pthread_mutexattr_t*);
  OLD(__pthread_mutex_destroy, pthread_mutex_t*);
  OLD(__pthread_mutex_lock, pthread_mutex_t*);
  OLD(__pthread_mutex_trylock, pthread_mutex_t*);
  OLD(__pthread_mutex_unlock, pthread_mutex_t*);
  OLD(__pthread_mutexattr_settype, pthread_mutexattr_t*, int);
  OLD(pthread_mutexattr_setkind_np, pthread_mutexattr_t*, int);
  OLD(pthread_mutexattr_setrobust_np, pthread_mutexattr_t*, int);
  OLD(pthread_mutex_consistent_np, pthread_mutex_t*);
  OLD(__pthread_rwlock_rdlock, pthread_rwlock_t*);
  OLD(__pthread_rwlock_wrlock, pthread_rwlock_t*);
  OLD(__pthread_rwlock_tryrdlock, pthread_rwlock_t*);
  OLD(__pthread_rwlock_trywrlock, pthread_rwlock_t*);
  OLD(__pthread_rwlock_unlock, pthread_rwlock_t*);
  struct sched_param p;
  FAILS("nobody", __sched_getscheduler, 0x3fffffff);
  FAILS("-1", __sched_getscheduler, -1);
  FAILS("nobody", __sched_getparam, 0x3fffffff, &p);
  FAILS("-1", __sched_getparam, -1, &p);
  p.sched_priority = 0;
  FAILS("nobody", __sched_setscheduler, 0x3fffffff, SCHED_OTHER, &p);
  FAILS("policy 99", __sched_setscheduler, 0, 99, &p);
  FAILS("-1", __sched_setscheduler, -1, SCHED_OTHER, &p);
  FAILS("99", __sched_get_priority_max, 99);
  FAILS("99", __sched_get_priority_min, 99);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  CASE("99", __pthread_mutexattr_settype, &a, 99);
  CASE("99", pthread_mutexattr_setkind_np, &a, 99);
  CASE("99", pthread_mutexattr_setrobust_np, &a, 99);
  CASE("errorcheck", __pthread_mutexattr_settype, &a, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_t m;
  CASE("", __pthread_mutex_init, &m, &a);
  CASE("not robust", pthread_mutex_consistent_np, &m);
  CASE("free", __pthread_mutex_unlock, &m);
  CASE("free", __pthread_mutex_trylock, &m);
  CASE("held", __pthread_mutex_trylock, &m);
  CASE("held", __pthread_mutex_lock, &m);
  CASE("held", __pthread_mutex_destroy, &m);
  CASE("held", __pthread_mutex_unlock, &m);
  CASE("free", __pthread_mutex_destroy, &m);
  pthread_rwlock_t l = PTHREAD_RWLOCK_INITIALIZER;
  CASE("free", __pthread_rwlock_wrlock, &l);
  CASE("written", __pthread_rwlock_tryrdlock, &l);
  CASE("written", __pthread_rwlock_trywrlock, &l);
  CASE("written by us", __pthread_rwlock_rdlock, &l);
  CASE("written by us", __pthread_rwlock_wrlock, &l);
  CASE("written", __pthread_rwlock_unlock, &l);
  // As in errors_rwlock.c.
  pthread_rwlock_rdlock(&l);
  pthread_rwlock_unlock(&l);
  unsigned *word = (unsigned*)&l, free_word = *word, most = (1u << 28) - 1;
  pthread_rwlock_rdlock(&l);
  unsigned one = *word - free_word;
  *word += one * (most - 1);
  CASE("most readers", __pthread_rwlock_rdlock, &l);
  CASE("most readers", __pthread_rwlock_tryrdlock, &l);
  *word -= one * (most - 1);
  CASE("read", __pthread_rwlock_unlock, &l);
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_t t;
  sem_t* go = malloc(sizeof *go);  // never freed, since nothing tells when the thread is done with it
  sem_init(go, 0, 0);
  if (pthread_create(&t, &detached, waits_for, go) == 0) CASE("detached", pthread_tryjoin_np, t, NULL);
  sem_post(go);
}

static void cases(void) {
  snprintf(theirs, sizeof theirs, "/errors_rights-%d", getpid());
  sem_t* s = sem_open(theirs, O_CREAT, 0600, 1);
  in_child(other_user);
  in_child(no_processes);
  in_child(no_signals);
  in_child(raised);
  in_child(no_descriptors);
  sem_close(s);
  sem_unlink(theirs);
  long_names();
  clones();
  bad_memory();
  old_names();
}
