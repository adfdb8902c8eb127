// SPDX-License-Identifier: MIT
// Signals that a thread sends to itself, to the process, or gets from a timer, a fault or a helper.
#include "differential.h"
#include <sys/signalfd.h>
#include <sys/select.h>
#include <sys/epoll.h>
#include <ucontext.h>

enum { kMost = 64 };
static _Thread_local struct {
  volatile int count;
  struct {
    int sig, value, code;
    bool on_stack;
  } list[kMost];
} caught;
_Thread_local sigjmp_buf* jump_to;
_Thread_local void (*call_in_handler)(void);
static _Thread_local char* own_stack;
enum { kStack = 65536 };

// The name of a signal, as all threads would print it.
static const char* signal_name(int sig) {
  if (sig >= OWN_SIGNAL(0) && sig < OWN_SIGNAL(kThreads)) return "own";
  const char* name = sigabbrev_np(sig);
  return name ? name : "?";
}

static void note(int sig, siginfo_t* info) {
  int n = caught.count;
  if (n == kMost) return;
  char here;
  caught.list[n].sig = sig;
  caught.list[n].value = info->si_code == SI_QUEUE || info->si_code == SI_TIMER ? info->si_value.sival_int : 0;
  caught.list[n].code = info->si_code;
  caught.list[n].on_stack = own_stack && &here >= own_stack && &here < own_stack + kStack;
  caught.count = n + 1;
}
static void on_signal(int sig, siginfo_t* info, void* context) {
  (void)context;
  int saved = errno;
  note(sig, info);
  // A value above 100 asks for a signal inside of the handler.
  if (info->si_code == SI_QUEUE && info->si_value.sival_int > 100) pthread_kill(pthread_self(), SIGUSR2);
  errno = saved;
}
static void on_urgent(int sig, siginfo_t* info, void* context) {
  (void)context;
  if (call_in_handler) call_in_handler();
  else if (jump_to) siglongjmp(*jump_to, sig);
  else note(sig, info);
}

int caught_signals(void) { return caught.count; }
void forget_caught(void) { caught.count = 0; }
void say_caught(void) {
  for (int i = 0; i < caught.count; i++)
    say(" caught-%s-%d-%d%s", signal_name(caught.list[i].sig), caught.list[i].value, caught.list[i].code,
        caught.list[i].on_stack ? "-stack" : "");
  caught.count = 0;
}

static void handle(int sig, void (*f)(int, siginfo_t*, void*), int flags) {
  struct sigaction a = {.sa_sigaction = f, .sa_flags = SA_SIGINFO | flags};
  sigaction(sig, &a, NULL);
}
void install_handlers(void) {
  handle(SIGUSR1, on_signal, 0);
  handle(SIGUSR2, on_signal, SA_RESTART);
  handle(SIGURG, on_urgent, SA_RESTART);
  signal(SIGPIPE, SIG_IGN);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
  for (int i = 0; i < 5; i++) handle(faults[i], on_urgent, SA_ONSTACK | (i % 2 ? SA_NODEFER : 0));
  sigset_t own;
  sigemptyset(&own);
  for (int i = 0; i < kThreads; i++) {
    handle(OWN_SIGNAL(i), on_signal, SA_RESTART);
    sigaddset(&own, OWN_SIGNAL(i));
  }
  pthread_sigmask(SIG_BLOCK, &own, NULL);
}

// ---- sending and taking ----

static void send_signal(int how, int sig, int value) {
  union sigval v = {.sival_int = value};
  int e;
  switch (how) {
    case 0: e = raise(sig); break;
    case 1: e = pthread_kill(pthread_self(), sig); break;
    case 2: e = pthread_sigqueue(pthread_self(), sig, v); break;
    case 3: e = tgkill(getpid(), gettid(), sig); break;
    case 4: e = kill(getpid(), sig); break;
    default: e = sigqueue(getpid(), sig, v);
  }
  if (e) SAY_ERROR("send", e);
}

// Takes pending signals of `set` and prints how many there were, and the sum of their values: the order of signals to the process is
// not fixed.
static void take(int how, const sigset_t* set, int sig, int fd, int to_come) {
  int n = 0, sum = 0, code = 0, got = 0;
  siginfo_t info;
  sigset_t mask, pending;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  sigdelset(&mask, sig);
  sigpending(&pending);
  if (!to_come) say(" pending %d", sigismember(&pending, sig));
  switch (how) {
    case 0:
      pthread_sigmask(SIG_UNBLOCK, set, NULL);
      n = caught.count;
      for (int i = 0; i < n; i++) sum += caught.list[i].value, code = caught.list[i].code;
      pthread_sigmask(SIG_BLOCK, set, NULL);
      caught.count = 0;
      break;
    case 1:
      if (!to_come && sigismember(&pending, sig)) n = sigwait(set, &got) == 0, say(" sigwait %d", got == sig);
      break;
    case 2: SAY_ERRNO("suspend", sigsuspend(&mask)); break;
    case 3: SAY_ERRNO("ppoll", ppoll(NULL, 0, &(struct timespec){10, 0}, &mask)); break;
    case 4: SAY_ERRNO("pselect", pselect(0, NULL, NULL, NULL, NULL, &mask)); break;
    case 5: {
      int fd = epoll_create1(EPOLL_CLOEXEC);
      struct epoll_event event;
      SAY_ERRNO("epoll_pwait", epoll_pwait(fd, &event, 1, 10000, &mask));
      close(fd);
      break;
    }
    case 6: {
      struct signalfd_siginfo s;
      while (read(fd, &s, sizeof s) == sizeof s) n++, sum += s.ssi_int;
      SAY_ERRNO("signalfd", -1);
      break;
    }
    default: break;
  }
  // Those to the process may be on their way to the thread, and overtake one another.
  for (int i = 0; to_come && i < caught.count; i++) n++, sum += caught.list[i].value, code = caught.list[i].code;
  if (to_come) caught.count = 0;
  while ((got = sigtimedwait(set, &info, &(struct timespec){n < to_come ? 100 : 0, 0})) > 0)
    n++, code = info.si_code, sum += code == SI_QUEUE || code == SI_TIMER ? info.si_value.sival_int : 0;
  say(" %s, taken %d sum %d code %d", error_name(errno), n, sum, code);
}

// The thread's own signal is blocked, sent, and taken.
static void own_signal(struct operation* o) {
  int sig = OWN_SIGNAL(me->number), count = 1 + o->a[1];
  // Known and not generated: a signalfd that is made later does not show what the thread has sent to itself before.
  int fd = o->a[2] == 6 ? signalfd(-1, &me->own_signal, SFD_NONBLOCK | SFD_CLOEXEC) : -1;
  for (int i = 0; i < count; i++) send_signal(o->a[0], sig, i + 1);
  take(o->a[2], &me->own_signal, sig, fd, o->a[0] >= 4 ? count : 0);
  if (fd != -1) close(fd);
}

// Standard signals, blocked or not.
static void plain_signal(struct operation* o) {
  int sig = PLAIN_SIGNAL(o->a[1] % 2), how = o->a[0];
  sigset_t set, old, pending;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  if (o->a[1] / 2) sigaddset(&set, SIGUSR2);
  SAY_ERROR("mask", pthread_sigmask(o->a[2] ? SIG_BLOCK : SIG_UNBLOCK, &set, &old));
  for (int i = 0; i <= o->a[3]; i++) send_signal(how, sig, 0);
  send_signal(how, PLAIN_SIGNAL(o->a[1] / 2), 0);
  say(" caught %d", caught.count);
  sigpending(&pending);
  say(" pending %d%d", sigismember(&pending, SIGUSR1), sigismember(&pending, SIGUSR2));
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  say_caught();
  SAY_ERROR("bad", pthread_sigmask(99, &set, NULL));
}

// Changes what the thread's own signal does, and sends it with values that nest.
static void action(struct operation* o) {
  static const int flags[] = {0, SA_NODEFER, SA_RESETHAND, SA_ONSTACK, SA_RESTART | SA_NODEFER, SA_ONSTACK | SA_NODEFER};
  int sig = OWN_SIGNAL(me->number);
  struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags[o->a[0]]}, old;
  if (o->a[1]) sigaddset(&a.sa_mask, SIGUSR2);
  stack_t stack = {.ss_sp = malloc(kStack), .ss_size = kStack}, before = {0};
  own_stack = stack.ss_sp;
  SAY_ERRNO("sigaltstack", sigaltstack(&stack, &before));
  say(" %d", before.ss_flags);
  SAY_ERRNO("action", sigaction(sig, &a, &old));
  pthread_sigqueue(pthread_self(), sig, (union sigval){.sival_int = 100 + o->a[2]});
  if (o->a[3] && o->a[0] != 2) pthread_kill(pthread_self(), sig);  // after SA_RESETHAND it would end the process
  pthread_sigmask(SIG_UNBLOCK, &me->own_signal, NULL);
  pthread_sigmask(SIG_BLOCK, &me->own_signal, NULL);
  say_caught();
  SAY_ERRNO("old", sigaction(sig, &old, &a));
  say(" %d", a.sa_handler == SIG_DFL);
  stack.ss_flags = SS_DISABLE;
  SAY_ERRNO("disable", sigaltstack(&stack, &before));
  say(" %d", before.ss_size == kStack);
  own_stack = NULL;
  free(before.ss_sp);
  SAY_ERRNO("kill", sigaction(SIGKILL, &old, NULL));
}

// ---- faults, and jumps out of handlers ----

static void fault(int which) {
  switch (which) {
    case 0: *(volatile int*)NULL = 1; break;
    case 1: __builtin_trap();
    case 2: raise(SIGSEGV); break;
    case 3: raise(SIGBUS); break;
    case 4: kill(getpid(), 0), pthread_kill(pthread_self(), SIGFPE); break;
    default: {
      char* page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      page[5] = 1;
    }
  }
}
static void* faults_main(void* v) {
  struct operation* o = v;
  for (volatile int i = 0; i <= o->a[1]; i++) {
    sigjmp_buf out;
    int sig = sigsetjmp(out, 1);
    if (sig) {
      jump_to = NULL;
      say(" %s", signal_name(sig));
      continue;
    }
    jump_to = &out;
    fault(o->a[0]);
  }
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  say(" blocked %d", sigismember(&mask, SIGSEGV) + sigismember(&mask, SIGBUS) + sigismember(&mask, SIGFPE));
  return NULL;
}
static void faults(struct operation* o) {
  if (o->a[2]) faults_main(o);
  else elsewhere(faults_main, o);
}

// ---- timers ----

static void timer(struct operation* o) {
  int sig = OWN_SIGNAL(me->number);
  struct sigevent e = {
      .sigev_notify = o->a[0] ? SIGEV_SIGNAL : SIGEV_THREAD_ID, .sigev_signo = sig, .sigev_value = {.sival_int = 40 + o->a[1]}};
  e._sigev_un._tid = gettid();
  timer_t t;
  struct itimerspec spec = {{0, o->a[2] ? 200000 : 0}, {0, 100000}}, left;
  SAY_ERRNO("create", timer_create(clock_of(o->a[1]), &e, &t));
  if (o->a[3] == 3) {
    spec.it_value.tv_sec = 1000;
    SAY_ERRNO("settime", timer_settime(t, 0, &spec, NULL));
    SAY_ERRNO("gettime", timer_gettime(t, &left));
    say(" %d", left.it_value.tv_sec >= 900);
    SAY_ERRNO("delete", timer_delete(t));
    SAY_ERRNO("none", sigtimedwait(&me->own_signal, NULL, &(struct timespec){0, 1000}));
    return;
  }
  if (o->a[3] == 2) clock_gettime(clock_of(o->a[1]), &spec.it_value);
  SAY_ERRNO("settime", timer_settime(t, o->a[3] == 2 ? TIMER_ABSTIME : 0, &spec, NULL));
  for (int i = 0; i <= o->a[2] * 2; i++) {
    siginfo_t info;
    int got = sigtimedwait(&me->own_signal, &info, &(struct timespec){100, 0});
    say(" %d code %d value %d", got == sig, info.si_code, info.si_value.sival_int);
  }
  SAY_ERRNO("overrun", timer_getoverrun(t) >= 0 ? 0 : -1);
  SAY_ERRNO("delete", timer_delete(t));
  while (sigtimedwait(&me->own_signal, NULL, &(struct timespec){0, 0}) > 0) {
  }
}

static void notify(union sigval v) { sem_post(v.sival_ptr); }
static void timer_thread(struct operation* o) {
  sem_t* s = calloc(1, sizeof *s);  // the notifying thread may use it after the wait
  struct sigevent e = {.sigev_notify = SIGEV_THREAD, .sigev_value = {.sival_ptr = s}};
  e.sigev_notify_function = notify;
  has_timer_thread = true;
  timer_t t;
  SAY_ERRNO("create", timer_create(clock_of(o->a[0]), &e, &t));
  SAY_ERRNO("settime", timer_settime(t, 0, &(struct itimerspec){{0, 0}, {0, 1000}}, NULL));
  int r;
  while ((r = sem_wait(s)) == -1 && errno == EINTR) {
  }
  SAY_ERRNO("wait", r);
  SAY_ERRNO("delete", timer_delete(t));
}

// ---- a helper waits for signals ----

static void* waits_for_signals(void* v) {
  struct operation* o = v;
  sigset_t set = me->own_signal;
  int sum = 0, got = 0, last = 0;
  bool ordered = true;
  for (int i = 0; i <= o->a[0]; i++) {
    siginfo_t info = {0};
    if (o->a[1] == 0) sigwait(&set, &got);
    if (o->a[1] == 1) got = sigwaitinfo(&set, &info);
    if (o->a[1] == 2) got = sigtimedwait(&set, &info, &(struct timespec){100, 0});
    if (o->a[1] == 3) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, NULL, &mask);
      sigdelset(&mask, OWN_SIGNAL(me->number));
      int n = caught.count;
      if (n <= i) sigsuspend(&mask);
      got = caught.list[i].sig;
      info.si_value.sival_int = caught.list[i].value;
    }
    sum += got == OWN_SIGNAL(me->number);
    ordered = ordered && info.si_value.sival_int >= last;
    last = info.si_value.sival_int;
  }
  forget_caught();
  return (void*)(long)(sum * 10 + ordered);
}
static void signals_to_helper(struct operation* o) {
  pthread_t t = start_helper(waits_for_signals, o, NULL);
  for (int i = 0; i <= o->a[0]; i++) {
    int e = pthread_sigqueue(t, OWN_SIGNAL(me->number), (union sigval){.sival_int = i + 1});
    if (e) SAY_ERROR("queue", e);
    if (o->a[2]) nap(20);
  }
  say(" %ld", (long)join(t));
}

const struct kind signal_kinds[] = {{"signal.own", own_signal, 60, 1, {6, 4, 8}, NULL},
                                    {"signal.plain", plain_signal, 40, 1, {4, 4, 2, 3}, NULL},
                                    {"action", action, 25, 1, {6, 2, 4, 2}, NULL},
                                    {"fault", faults, 12, 1, {6, 3, 2}, NULL},
                                    {"timer", timer, 25, 1, {2, 2, 2, 4}, NULL},
                                    {"timer.thread", timer_thread, 6, 1, {2}, NULL},
                                    {"signal.helper", signals_to_helper, 20, 1, {5, 4, 2}, NULL},
                                    {0}};
