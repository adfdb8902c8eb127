// SPDX-License-Identifier: MIT
// Signals: every call that sets, masks, sends and waits for them.
#include "errors.h"
#include "old_libc.h"

#include <poll.h>
#include <sys/epoll.h>

extern sighandler_t bsd_signal(int, sighandler_t), __sysv_signal(int, sighandler_t);
extern int __xpg_sigpause(int);
extern int __ppoll_chk(struct pollfd*, nfds_t, const struct timespec*, const sigset_t*, size_t);
extern int mask_pause(int) __asm__("sigpause");  // headers redirect the name

static void nothing(int sig) {}
#define SIGNAL(state, f, ...) show(#f, state, (errno = 0, f(__VA_ARGS__)) == SIG_ERR ? errno : 0)

// Sends SIGUSR1 to the calling thread every three milliseconds, the first time after one.
static timer_t interrupts(void) {
  struct sigevent e;
  memset(&e, 0, sizeof e);
  e.sigev_notify = SIGEV_THREAD_ID;
  e.sigev_signo = SIGUSR1;
  e._sigev_un._tid = gettid();
  timer_t t;
  assert(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
  struct itimerspec i = {{0, 1000000}, {0, 3000000}};
  timer_settime(t, 0, &i, NULL);
  return t;
}
static void interrupted(void) {
  struct sigaction a, before;
  memset(&a, 0, sizeof a);
  a.sa_handler = nothing;
  sigaction(SIGUSR1, &a, &before);
  sigset_t none, usr2, old;
  sigemptyset(&none);
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, &old);
  const struct timespec hour = {3600, 0};
  struct timespec left;
  struct epoll_event event;
  siginfo_t info;
  int epoll = epoll_create1(0);
  timer_t t = interrupts();
  FAILS("a signal", pause);
  FAILS("a signal", usleep, 900000000);
  FAILS("a signal", nanosleep, &hour, &left);
  CASE("a signal", clock_nanosleep, CLOCK_MONOTONIC, 0, &hour, &left);
  FAILS("a signal", ppoll, NULL, 0, &hour, NULL);
  FAILS("a signal", __ppoll_chk, NULL, 0, &hour, NULL, 0);
  FAILS("a signal", pselect, 0, NULL, NULL, NULL, &hour, NULL);
  FAILS("a signal", epoll_pwait, epoll, &event, 1, -1, NULL);
  FAILS("a signal", epoll_pwait2, epoll, &event, 1, &hour, NULL);
  FAILS("a signal", sigsuspend, &usr2);
  show("sigpause", "a signal", mask_pause(0) == -1 ? errno : 0);
  FAILS("a signal", __xpg_sigpause, SIGUSR2);
  FAILS("another signal", sigwaitinfo, &usr2, &info);
  FAILS("another signal", sigtimedwait, &usr2, &info, &hour);
  timer_delete(t);
  close(epoll);
  // A signal that is pending already ends a wait at once.
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  raise(SIGUSR1);
  FAILS("a pending signal", sigsuspend, &none);
  raise(SIGUSR1);
  FAILS("a pending signal", ppoll, NULL, 0, &hour, &none);
  raise(SIGUSR1);
  show("sigpause", "a pending signal", mask_pause(0) == -1 ? errno : 0);
  sigaction(SIGUSR1, &before, NULL);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static char* other;
enum { kOther = 65536 };
static void on_other(int sig) {
  stack_t s = {other, 0, kOther};
  FAILS("on it", sigaltstack, &s, NULL);
  s.ss_flags = SS_DISABLE;
  FAILS("disabled, on it", sigaltstack, &s, NULL);
}

static bool free_to_use(int n) { return n == 64 || n == SIGUSR1; }

static void set_action(int n, const char* name) {
  struct sigaction old, a;
  memset(&a, 0, sizeof a);
  a.sa_handler = SIG_IGN;
  FAILS(format("%s, asked", name), sigaction, n, NULL, &old);
  FAILS(format("%s, ignored", name), sigaction, n, &a, NULL);
  a.sa_handler = SIG_DFL;
  FAILS(format("%s, default", name), sigaction, n, &a, NULL);
  SIGNAL(name, signal, n, SIG_IGN);
  SIGNAL(name, bsd_signal, n, SIG_IGN);
  SIGNAL(name, ssignal, n, SIG_IGN);
  SIGNAL(name, sysv_signal, n, SIG_IGN);
  SIGNAL(name, __sysv_signal, n, SIG_IGN);
  SIGNAL(name, sigset, n, SIG_IGN);
  FAILS(name, sigignore, n);
  FAILS(name, siginterrupt, n, 1);
  FAILS(name, siginterrupt, n, 0);
  SIGNAL(format("SIG_ERR, %s", name), signal, n, SIG_ERR);
}
// Sends only signals that end nothing. A signal that can be ignored is ignored first.
static void hold_and_send(int n, const char* name) {
  if (n <= 0 || n > 64 || free_to_use(n)) {
    FAILS(name, sighold, n);
    FAILS(name, sigrelse, n);
    if (free_to_use(n)) signal(n, SIG_IGN);
  }
  if (n < 0 || n > 64 || free_to_use(n)) {
    FAILS(name, raise, n);
    FAILS(name, gsignal, n);
    FAILS(name, kill, getpid(), n);
    FAILS(name, sigqueue, getpid(), n, (union sigval){0});
    CASE(name, pthread_kill, pthread_self(), n);
    CASE(name, pthread_sigqueue, pthread_self(), n, (union sigval){0});
    FAILS(name, tgkill, getpid(), gettid(), n);
  }
  if (n < 0 || n > 64) FAILS(name, __xpg_sigpause, n);
}
static void numbers(void) {
  static const int numbers[] = {0, -1, 65, 1000, SIGKILL, SIGSTOP, 32, 33, 64, SIGUSR1};
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    const char* name = format("%d", numbers[i]);
    set_action(numbers[i], name);
    hold_and_send(numbers[i], name);
    signal(SIGUSR1, SIG_DFL);
    signal(64, SIG_DFL);
  }
  FAILS("nobody", kill, 0x3fffffff, 0);
  FAILS("nobody", sigqueue, 0x3fffffff, 0, (union sigval){0});
  FAILS("nobody", tgkill, getpid(), 0x3fffffff, 0);
}

static void masks(void) {
  static const int hows[] = {SIG_BLOCK, SIG_UNBLOCK, 3, -1, 99};
  sigset_t set, old;
  sigemptyset(&set);
  for (int i = 0; i < 5; i++) {
    FAILS(format("how %d", hows[i]), sigprocmask, hows[i], &set, &old);
    FAILS(format("how %d, no set", hows[i]), sigprocmask, hows[i], NULL, &old);
    CASE(format("how %d", hows[i]), pthread_sigmask, hows[i], &set, &old);
  }
  FAILS("", sigpending, &set);
  FAILS("bad pointer", sigpending, (sigset_t*)8);
  show_value("sigblock", "nothing", sigblock(0));
  int before = sigsetmask(0);
  show_value("sigsetmask", "back", sigsetmask(before));
}

static void waits_for_signals(void) {
  sigset_t set, old;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  siginfo_t info;
  static const struct timespec zero = {0, 0};
  pthread_sigmask(SIG_BLOCK, &set, &old);
  FAILS("nothing pending", sigtimedwait, &set, &info, &zero);
  FAILS("tv_nsec 1e9", sigtimedwait, &set, &info, &bad_high);
  FAILS("tv_nsec -1", sigtimedwait, &set, &info, &bad_low);
  FAILS("before 1970", sigtimedwait, &set, &info, &negative);
  raise(SIGUSR2);
  show_value("sigtimedwait", "pending", sigtimedwait(&set, &info, &zero));
  raise(SIGUSR2);
  show_value("sigwaitinfo", "pending", sigwaitinfo(&set, &info));
  raise(SIGUSR2);
  int sig;
  CASE("pending", sigwait, &set, &sig);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void alternate_stacks(void) {
  other = malloc(kOther);
  stack_t s = {other, 0, kOther};
  FAILS("", sigaltstack, &s, NULL);
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_handler = on_other;
  a.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR2, &a, NULL);
  raise(SIGUSR2);
  signal(SIGUSR2, SIG_DFL);
  s.ss_flags = 99;
  FAILS("flags 99", sigaltstack, &s, NULL);
  s = (stack_t){other, 0, 512};
  FAILS("512 bytes", sigaltstack, &s, NULL);
  s = (stack_t){other, SS_DISABLE, 0};
  FAILS("disabled", sigaltstack, &s, NULL);
  free(other);
}

static void cases(void) {
  numbers();
  masks();
  waits_for_signals();
  alternate_stacks();
  interrupted();
}
