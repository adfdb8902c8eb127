// SPDX-License-Identifier: MIT
// Signals: to threads and to the process, faults, sigwait, masks, timers; cancellation wherever a thread may be.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_t main_thread;
static volatile int on_main, on_others, spins_end;
static int fd[2];

static void count(int sig) {
  (void)sig;
  if (pthread_equal(pthread_self(), main_thread)) on_main++;
  else __atomic_fetch_add(&on_others, 1, __ATOMIC_SEQ_CST);
}
static void handle(int sig, void (*handler)(int), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = handler;
  sa.sa_flags = flags;
  assert(sigaction(sig, &sa, NULL) == 0);
}
static void* spin(void* p) {
  while (!spins_end) {
  }
  return p;
}
// Until the thread has said that it is about to wait, and then long enough that it does.
static sem_t about_to_wait;
static void settle(void) {
  sem_wait(&about_to_wait);
  for (int i = 0; i < 5; i++) usleep(2000);
}

static void* read_once(void* p) {
  char c;
  sem_post(&about_to_wait);
  ssize_t r = read(fd[0], &c, 1);
  return (void*)(long)(r < 0 ? errno : 1000 + r);
}
static void* poll_once(void* p) {
  struct pollfd f = {fd[0], POLLIN, 0};
  sem_post(&about_to_wait);
  int r = poll(&f, 1, -1);
  return (void*)(long)(r < 0 ? errno : 1000 + r);
}

static sigjmp_buf back;
static void* volatile fault_address;
static void jump_back(int sig, siginfo_t* info, void* context) {
  (void)sig, (void)context;
  fault_address = info->si_addr;
  siglongjmp(back, 1);
}
// At multiples of 8: of a misaligned access, qemu 10 tells a rounded address.
static void fault(void) {
  for (volatile int i = 0; i < 300; i++) {
    if (!sigsetjmp(back, 1)) *(volatile int*)(long)(8 * (1 + i)) = 1;
    assert(fault_address == (void*)(long)(8 * (1 + i)));
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert(!sigismember(&now, SIGSEGV));
    if (i % 16 == 0) sched_yield();
  }
}
static void* fault_in_thread(void* p) {
  fault();
  return p;
}

static void* wait_for_usr2(void* p) {
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR2);
  long n = 0;
  for (int i = 0; i < 4; i++) {
    int sig = 0;
    sem_post(&about_to_wait);
    if (i % 2) assert(sigwait(&s, &sig) == 0);
    else sig = sigwaitinfo(&s, NULL);
    n += sig == SIGUSR2;
  }
  struct timespec soon = {0, 1000000};
  assert(sigtimedwait(&s, NULL, &soon) == -1 && errno == EAGAIN);
  return (void*)n;
}

static void* suspend(void* p) {
  sigset_t none;
  pthread_sigmask(SIG_BLOCK, NULL, &none);
  sigdelset(&none, SIGUSR2);
  for (int i = 0; i < 20; i++) {
    struct timespec never = {100, 0};
    sem_post(&about_to_wait);
    int r = i % 3 == 0 ? sigsuspend(&none) : i % 3 == 1 ? ppoll(NULL, 0, &never, &none) : pselect(0, NULL, NULL, NULL, &never, &none);
    assert(r == -1 && errno == EINTR);
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    assert(sigismember(&now, SIGUSR2));
  }
  return p;
}

static int cleaned;
static void unlock(void* m) { pthread_mutex_unlock(m); }
static void clean(void* p) { cleaned += p != NULL; }
static void* waits(void* p) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  sem_t s;
  sem_init(&s, 0, 0);
  char byte;
  pthread_cleanup_push(clean, &byte);
  sem_post(&about_to_wait);
  switch ((long)p) {
    case 0: read(fd[0], &byte, 1); break;
    case 1: pause(); break;
    case 2: sem_wait(&s); break;
    case 3: sleep(100); break;
    case 4: pthread_join(main_thread, NULL); break;
    case 5: poll(NULL, 0, 100000); break;
    case 6:
      pthread_mutex_lock(&m);
      pthread_cleanup_push(unlock, &m);
      pthread_cond_wait(&c, &m);
      pthread_cleanup_pop(1);
      break;
    case 7:
      for (;;) pthread_testcancel();
    case 8:
      pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
      for (;;) {
      }
    case 9: {
      sigset_t none;
      sigemptyset(&none);
      sigsuspend(&none);
    }
  }
  pthread_cleanup_pop(0);
  return NULL;
}
static void* disabled(void* p) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  sem_post(&about_to_wait);
  for (int i = 0; i < 30; i++) usleep(1000);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  pthread_testcancel();
  return NULL;
}

int main() {
  main_thread = pthread_self();
  sem_init(&about_to_wait, 0, 0);
  assert(pipe(fd) == 0);
  pthread_t t, spinner[2];
  void* r;

  // A signal to one thread interrupts its system call, or restarts it.
  handle(SIGUSR1, count, 0);
  pthread_create(&t, NULL, read_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  pthread_join(t, &r);
  printf("read: %s, handlers %d\n", strerror((int)(long)r), on_others);
  handle(SIGUSR1, count, SA_RESTART);
  pthread_create(&t, NULL, read_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  while (on_others < 2) sched_yield();
  assert(write(fd[1], "x", 1) == 1);
  pthread_join(t, &r);
  printf("restarted: %ld\n", (long)r);
  pthread_create(&t, NULL, poll_once, NULL);
  settle();
  pthread_kill(t, SIGUSR1);
  pthread_join(t, &r);
  printf("poll: %s\n", strerror((int)(long)r));

  // One to the process goes to the main thread, running or waiting, and interrupts it. (The kernel now and then takes another.)
  for (int i = 0; i < 2; i++) pthread_create(&spinner[i], NULL, spin, NULL);
  on_main = on_others = 0;
  for (int i = 0; i < 20; i++) {
    kill(getpid(), SIGUSR1);
    raise(SIGUSR1);
    pthread_kill(pthread_self(), SIGUSR1);
  }
  assert(on_others == 0 || !getenv("LD_PRELOAD"));
  printf("main and others %d\n", on_main + on_others);
  // From outside, one may come while main handles the one before it: main would have it blocked then, and another would get it.
  handle(SIGUSR1, count, SA_RESTART | SA_NODEFER);
  on_main = on_others = 0;
  if (fork() == 0) {
    for (int i = 0; i < 10; i++) {
      usleep(3000);
      kill(getppid(), SIGUSR1);
    }
    _exit(0);
  }
  while (wait(NULL) < 0) assert(errno == EINTR);
  assert(on_others == 0 || !getenv("LD_PRELOAD"));
  printf("from a child: some %d\n", on_main + on_others > 0);

  handle(SIGALRM, count, 0);
  on_main = 0;
  struct itimerval each = {{0, 5000}, {0, 5000}}, off = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &each, NULL);
  while (on_main < 10) pause();
  setitimer(ITIMER_REAL, &off, NULL);
  spins_end = 1;
  for (int i = 0; i < 2; i++) pthread_join(spinner[i], NULL);

  // Faults, handlers that jump.
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_sigaction = jump_back;
  sa.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &sa, NULL);
  fault();
  pthread_create(&t, NULL, fault_in_thread, NULL);
  pthread_join(t, NULL);
  signal(SIGSEGV, SIG_DFL);
  puts("faults");

  // Blocked signals: waited for, pending, taken by sigsuspend and the like.
  sigset_t s, pending;
  sigemptyset(&s);
  sigaddset(&s, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  handle(SIGUSR2, count, 0);
  pthread_create(&t, NULL, wait_for_usr2, NULL);
  for (int i = 0; i < 4; i++) {
    settle();
    if (i < 2) pthread_kill(t, SIGUSR2);
    else kill(getpid(), SIGUSR2);
  }
  pthread_join(t, &r);
  printf("sigwait %ld\n", (long)r);
  on_main = 0;
  raise(SIGUSR2);
  sigpending(&pending);
  printf("pending %d handlers %d", sigismember(&pending, SIGUSR2), on_main);
  pthread_sigmask(SIG_UNBLOCK, &s, NULL);
  sigpending(&pending);
  printf(", then %d handlers %d\n", sigismember(&pending, SIGUSR2), on_main);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  on_others = 0;
  pthread_create(&t, NULL, suspend, NULL);
  for (int i = 0; i < 20; i++) {
    sem_wait(&about_to_wait);
    if (i % 2) usleep(1000);
    pthread_kill(t, SIGUSR2);
  }
  pthread_join(t, NULL);
  printf("suspended: handlers %d\n", on_others);

  // Cancellation.
  for (long how = 0; how < 10; how++) {
    pthread_create(&t, NULL, waits, (void*)how);
    if (how != 7) settle();
    pthread_cancel(t);
    pthread_join(t, &r);
    assert(r == PTHREAD_CANCELED);
    if (how == 7) sem_wait(&about_to_wait);
  }
  printf("cancelled, cleaned %d\n", cleaned);
  pthread_create(&t, NULL, disabled, NULL);
  sem_wait(&about_to_wait);
  pthread_cancel(t);
  pthread_join(t, &r);
  printf("late: %d\n", r == PTHREAD_CANCELED);

  // How a process ends.
  for (int how = 0; how < 4; how++) {
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
      sigprocmask(SIG_UNBLOCK, &s, NULL);
      signal(SIGUSR2, SIG_DFL);
      signal(SIGINT, SIG_DFL);  // a shell without job control ignores it in what it runs in the background
      spins_end = 0;
      pthread_create(&t, NULL, how == 3 ? spin : read_once, NULL);
      if (how != 3) sem_wait(&about_to_wait);
      if (how == 2) pthread_kill(t, SIGUSR2);
      pthread_join(t, NULL);
      _exit(1);
    }
    usleep(30000);
    if (how != 2) kill(p, how == 0 ? SIGINT : SIGTERM);
    int status;
    waitpid(p, &status, 0);
    printf("ended by %d\n", WTERMSIG(status));
  }
  return 0;
}
