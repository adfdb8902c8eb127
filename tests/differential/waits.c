// SPDX-License-Identifier: MIT
// The table of waits.
#include "waits.h"
#include <linux/futex.h>
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>

#define RESULT(call) ((call) == -1 ? errno : 0)

// ---- objects ----

static void nothing(struct place* p) { (void)p; }
static void open_sem(struct place* p) { sem_init(&p->sem, p->shared, 0); }
static void post(struct place* p) { sem_post(&p->sem); }
static int enter_sem(struct place* p) { return RESULT(sem_wait(&p->sem)); }
static int enter_sem_timed(struct place* p) { return RESULT(sem_timedwait(&p->sem, &far_away)); }
static int enter_sem_clock(struct place* p) { return RESULT(sem_clockwait(&p->sem, CLOCK_MONOTONIC, &far_away)); }

static void open_mutex(struct place* p, int protocol) {
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, p->shared);
  pthread_mutexattr_setprotocol(&a, protocol);
  pthread_mutex_init(&p->mutex, &a);
}
static void open_cond(struct place* p) {
  open_mutex(p, PTHREAD_PRIO_NONE);
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setpshared(&a, p->shared);
  pthread_cond_init(&p->cond, &a);
  p->flag = 0;
}
static void leave_cond(void* v) {
  struct place* p = v;
  int e = pthread_mutex_trylock(&p->mutex);
  if (e != EBUSY) say(" not-mine=%s", error_name(e));
  pthread_mutex_unlock(&p->mutex);
}
static int cond(struct place* p, int how) {
  volatile int e = 0;
  pthread_mutex_lock(&p->mutex);
  pthread_cleanup_push(leave_cond, p);
  while (!p->flag && e == 0)
    e = how == 0   ? pthread_cond_wait(&p->cond, &p->mutex)
        : how == 1 ? pthread_cond_timedwait(&p->cond, &p->mutex, &far_away)
                   : pthread_cond_clockwait(&p->cond, &p->mutex, CLOCK_MONOTONIC, &far_away);
  pthread_cleanup_pop(1);
  return e;
}
static int enter_cond(struct place* p) { return cond(p, 0); }
static int enter_cond_timed(struct place* p) { return cond(p, 1); }
static int enter_cond_clock(struct place* p) { return cond(p, 2); }
static void finish_cond(struct place* p) {
  pthread_mutex_lock(&p->mutex);
  p->flag = 1;
  pthread_cond_signal(&p->cond);
  pthread_mutex_unlock(&p->mutex);
}

static void open_locked(struct place* p) {
  open_mutex(p, PTHREAD_PRIO_NONE);
  pthread_mutex_lock(&p->mutex);
}
static void open_locked_pi(struct place* p) {
  open_mutex(p, PTHREAD_PRIO_INHERIT);
  pthread_mutex_lock(&p->mutex);
}
static void unlock(struct place* p) { pthread_mutex_unlock(&p->mutex); }
static int locked(struct place* p, int e) {
  if (e == 0) pthread_mutex_unlock(&p->mutex);
  return e;
}
static int enter_lock(struct place* p) { return locked(p, pthread_mutex_lock(&p->mutex)); }
static int enter_lock_timed(struct place* p) { return locked(p, pthread_mutex_timedlock(&p->mutex, &far_away)); }
static int enter_lock_clock(struct place* p) { return locked(p, pthread_mutex_clocklock(&p->mutex, CLOCK_MONOTONIC, &far_away)); }
static void open_c11(struct place* p) {
  mtx_init(&p->c11, mtx_plain);
  mtx_lock(&p->c11);
}
static int enter_c11(struct place* p) { return mtx_lock(&p->c11) != thrd_success || mtx_unlock(&p->c11) != thrd_success; }
static void finish_c11(struct place* p) { mtx_unlock(&p->c11); }

static void open_rwlock(struct place* p) {
  pthread_rwlockattr_t a;
  pthread_rwlockattr_init(&a);
  pthread_rwlockattr_setpshared(&a, p->shared);
  pthread_rwlock_init(&p->rwlock, &a);
  pthread_rwlock_wrlock(&p->rwlock);
}
static void open_rwlock_read(struct place* p) {
  open_rwlock(p);
  pthread_rwlock_unlock(&p->rwlock);
  pthread_rwlock_rdlock(&p->rwlock);
}
static int rw_locked(struct place* p, int e) {
  if (e == 0) pthread_rwlock_unlock(&p->rwlock);
  return e;
}
static int enter_read(struct place* p) { return rw_locked(p, pthread_rwlock_rdlock(&p->rwlock)); }
static int enter_write(struct place* p) { return rw_locked(p, pthread_rwlock_wrlock(&p->rwlock)); }
static int enter_read_timed(struct place* p) { return rw_locked(p, pthread_rwlock_timedrdlock(&p->rwlock, &far_away)); }
static int enter_write_clock(struct place* p) { return rw_locked(p, pthread_rwlock_clockwrlock(&p->rwlock, CLOCK_MONOTONIC, &far_away)); }
static void finish_rwlock(struct place* p) { pthread_rwlock_unlock(&p->rwlock); }

static void open_barrier(struct place* p) {
  pthread_barrierattr_t a;
  pthread_barrierattr_init(&a);
  pthread_barrierattr_setpshared(&a, p->shared);
  pthread_barrier_init(&p->barrier, &a, 2);
}
static int enter_barrier(struct place* p) {
  int e = pthread_barrier_wait(&p->barrier);
  return e == PTHREAD_BARRIER_SERIAL_THREAD ? 0 : e;
}
static void finish_barrier(struct place* p) { pthread_barrier_wait(&p->barrier); }

// A thread that ends, or leaves its initialiser, when it is told to.
static _Thread_local struct place* initialises;
static void wait_for_end(struct place* p) {
  while (sem_wait(&p->end) != 0) {
  }
}
static void initialise(void) {
  if (!initialises) return;
  sem_post(&initialises->sem);
  wait_for_end(initialises);
}
static void* other(void* v) {
  wait_for_end(v);
  return (void*)7L;
}
static void* other_once(void* v) {
  initialises = v;
  pthread_once(&initialises->once, initialise);
  return NULL;
}
static void open_join(struct place* p) {
  sem_init(&p->end, 0, 0);
  p->other = start_helper(other, p, NULL);
  p->flag = 0;
}
static int joined(struct place* p, int e, void* value) {
  if (e == 0) p->flag = 1;
  return e ? e : value == (void*)7L ? 0 : EILSEQ;
}
static int enter_join(struct place* p) {
  void* value = NULL;
  int e = pthread_join(p->other, &value);
  return joined(p, e, value);
}
static int enter_join_timed(struct place* p) {
  void* value = NULL;
  int e = pthread_timedjoin_np(p->other, &value, &far_away);
  return joined(p, e, value);
}
static void finish_other(struct place* p) { sem_post(&p->end); }
static void close_join(struct place* p) {
  sem_post(&p->end);
  if (!p->flag) join(p->other);
}
static void open_once(struct place* p) {
  sem_init(&p->end, 0, 0);
  sem_init(&p->sem, 0, 0);
  p->once = (pthread_once_t)PTHREAD_ONCE_INIT;
  p->other = start_helper(other_once, p, NULL);
  enter_sem(p);
}
static int enter_once(struct place* p) { return pthread_once(&p->once, initialise); }

static int enter_futex(struct place* p) {
  while (p->flag == 0)
    if (syscall(SYS_futex, &p->flag, p->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno != EAGAIN) return errno;
  return 0;
}
static void open_futex(struct place* p) { p->flag = 0; }
static void finish_futex(struct place* p) {
  p->flag = 1;
  syscall(SYS_futex, &p->flag, p->shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

// ---- descriptors ----

static void open_pipe(struct place* p) { assert(pipe2(p->fds, O_CLOEXEC) == 0); }
static void open_sockets(struct place* p) { assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p->fds) == 0); }
static void open_packets(struct place* p) { assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, p->fds) == 0); }
static void close_fds(struct place* p) {
  close(p->fds[0]);
  close(p->fds[1]);
}
static void write_byte(struct place* p) {
  int saved = errno;
  assert(write(p->fds[1], "x", 1) == 1);
  errno = saved;
}
static int one_byte(ssize_t n) { return n == 1 ? 0 : n == -1 ? errno : EILSEQ; }
static int enter_read_fd(struct place* p) {
  char c[4];
  return one_byte(read(p->fds[0], c, 4));
}
static int enter_readv(struct place* p) {
  char c[4];
  struct iovec v[2] = {{c, 1}, {c + 1, 3}};
  return one_byte(readv(p->fds[0], v, 2));
}
static int enter_recv(struct place* p) {
  char c[4];
  return one_byte(recv(p->fds[0], c, 4, 0));
}
static int enter_recvfrom(struct place* p) {
  char c[4];
  return one_byte(recvfrom(p->fds[0], c, 4, 0, NULL, NULL));
}
static int enter_recvmsg(struct place* p) {
  char c[4];
  struct iovec v = {c, 4};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  return one_byte(recvmsg(p->fds[0], &m, 0));
}
static void fill(struct place* p) {
  static const char block[4096];
  fcntl(p->fds[1], F_SETFL, O_NONBLOCK);
  while (write(p->fds[1], block, sizeof block) > 0) {
  }
  while (write(p->fds[1], block, 1) > 0) {
  }
  fcntl(p->fds[1], F_SETFL, 0);
}
static void open_full_pipe(struct place* p) {
  open_pipe(p);
  fcntl(p->fds[1], F_SETPIPE_SZ, 4096);
  fill(p);
}
static void open_full_sockets(struct place* p) {
  open_sockets(p);
  int size = 4096;
  setsockopt(p->fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  fill(p);
}
static int enter_write_fd(struct place* p) { return one_byte(write(p->fds[1], "x", 1)); }
static int enter_send(struct place* p) { return one_byte(send(p->fds[1], "x", 1, 0)); }
static void drain(struct place* p) {
  char block[4096];
  fcntl(p->fds[0], F_SETFL, O_NONBLOCK);
  while (read(p->fds[0], block, sizeof block) > 0) {
  }
}
static void open_listener(struct place* p) {
  p->fds[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  p->fds[1] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  assert(bind(p->fds[0], (void*)&a, sizeof a.sun_family) == 0);  // the kernel finds a name
  assert(listen(p->fds[0], 5) == 0);
}
static int enter_accept(struct place* p) {
  int fd = accept(p->fds[0], NULL, NULL);
  int e = fd == -1 ? errno : 0;
  if (fd != -1) close(fd);
  return e;
}
static void finish_accept(struct place* p) {
  struct sockaddr_un a;
  socklen_t n = sizeof a;
  getsockname(p->fds[0], (void*)&a, &n);
  assert(connect(p->fds[1], (void*)&a, n) == 0);
}
static int enter_poll(struct place* p) {
  struct pollfd f = {p->fds[0], POLLIN, 0};
  return one_byte(poll(&f, 1, -1));
}
static int enter_ppoll(struct place* p) {
  struct pollfd f = {p->fds[0], POLLIN, 0};
  return one_byte(ppoll(&f, 1, &(struct timespec){100000, 0}, NULL));
}
static int enter_select(struct place* p) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p->fds[0], &set);
  return one_byte(select(p->fds[0] + 1, &set, NULL, NULL, NULL));
}
static int enter_pselect(struct place* p) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p->fds[0], &set);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  return one_byte(pselect(p->fds[0] + 1, &set, NULL, NULL, NULL, &mask));
}
static void open_epoll(struct place* p) {
  open_pipe(p);
  p->extra = epoll_create1(EPOLL_CLOEXEC);
  epoll_ctl(p->extra, EPOLL_CTL_ADD, p->fds[0], &(struct epoll_event){.events = EPOLLIN});
}
static int enter_epoll(struct place* p) {
  struct epoll_event e[2];
  return one_byte(epoll_wait(p->extra, e, 2, -1));
}
static int enter_epoll_pwait(struct place* p) {
  struct epoll_event e[2];
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  return one_byte(epoll_pwait(p->extra, e, 2, 1000000000, &mask));
}
static void close_extra(struct place* p) {
  close_fds(p);
  close(p->extra);
}
static void open_eventfd(struct place* p) { p->fds[0] = eventfd(0, EFD_CLOEXEC); }
static int enter_eventfd(struct place* p) {
  uint64_t n;
  return RESULT(read(p->fds[0], &n, 8));
}
static void finish_eventfd(struct place* p) { assert(write(p->fds[0], &(uint64_t){1}, 8) == 8); }
static void close_one(struct place* p) { close(p->fds[0]); }
static void open_timerfd(struct place* p) {
  p->fds[0] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  timerfd_settime(p->fds[0], 0, &(struct itimerspec){{0, 0}, {100000, 0}}, NULL);
}
static void finish_timerfd(struct place* p) { timerfd_settime(p->fds[0], 0, &(struct itimerspec){{0, 0}, {0, 1}}, NULL); }
static void open_queue(struct place* p) {
  char name[64];
  snprintf(name, sizeof name, "/differential-%d-%p", getpid(), (void*)p);
  p->fds[0] = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &(struct mq_attr){.mq_maxmsg = 2, .mq_msgsize = 8});
  mq_unlink(name);
}
static int enter_queue(struct place* p) {
  char c[8];
  return one_byte(mq_receive(p->fds[0], c, 8, NULL));
}
static void finish_queue(struct place* p) { mq_send(p->fds[0], "x", 1, 0); }
static void open_file(struct place* p) {
  char name[64];
  p->fds[0] = memfd_create("differential", MFD_CLOEXEC);
  snprintf(name, sizeof name, "/proc/self/fd/%d", p->fds[0]);
  p->fds[1] = open(name, O_RDWR | O_CLOEXEC);  // another description of the same file
}
static void open_flock(struct place* p) {
  open_file(p);
  flock(p->fds[0], LOCK_EX);
}
static int enter_flock(struct place* p) { return RESULT(flock(p->fds[1], LOCK_EX)); }
static void finish_flock(struct place* p) { flock(p->fds[0], LOCK_UN); }
static void open_range(struct place* p) {
  open_file(p);
  fcntl(p->fds[0], F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK});
}
static int enter_range(struct place* p) { return RESULT(fcntl(p->fds[1], F_OFD_SETLKW, &(struct flock){.l_type = F_WRLCK})); }
static void finish_range(struct place* p) { fcntl(p->fds[0], F_OFD_SETLK, &(struct flock){.l_type = F_UNLCK}); }

// ---- signals, processes, time ----

static int enter_sigwait(struct place* p) {
  int sig;
  return sigwait(&p->owner->own_signal, &sig);
}
static int enter_sigwaitinfo(struct place* p) { return RESULT(sigwaitinfo(&p->owner->own_signal, NULL)); }
static int enter_sigtimedwait(struct place* p) { return RESULT(sigtimedwait(&p->owner->own_signal, NULL, &(struct timespec){100000, 0})); }
static void finish_sigwait(struct place* p) { pthread_kill(p->waiter, OWN_SIGNAL(p->owner->number)); }
static int enter_pause(struct place* p) {
  (void)p;
  return RESULT(pause());
}
static int enter_sigsuspend(struct place* p) {
  (void)p;
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  return RESULT(sigsuspend(&mask));
}
static int enter_nanosleep(struct place* p) {
  (void)p;
  return RESULT(nanosleep(&(struct timespec){100000, 0}, NULL));
}
static int enter_clock_nanosleep(struct place* p) { return clock_nanosleep(clock_of(p->shared), TIMER_ABSTIME, &far_away, NULL); }
static int enter_thrd_sleep(struct place* p) {
  (void)p;
  return thrd_sleep(&(struct timespec){100000, 0}, NULL) == -1 ? EINTR : EILSEQ;
}
static int enter_empty_poll(struct place* p) {
  (void)p;
  return RESULT(poll(NULL, 0, -1));
}
static void open_child(struct place* p) {
  pid_t pid = fork();
  if (pid == 0)
    for (;;) pause();
  assert(pid > 0);
  p->child = pid;  // the child shares *p
}
static int enter_waitpid(struct place* p) {
  int status;
  if (waitpid(p->child, &status, 0) == -1) return errno;
  p->child = 0;
  return WIFSIGNALED(status) ? 0 : EILSEQ;
}
static int enter_waitid(struct place* p) {
  siginfo_t info;
  return RESULT(waitid(P_PID, p->child, &info, WEXITED | WNOWAIT));
}
static void finish_child(struct place* p) { kill(p->child, SIGKILL); }
static void close_child(struct place* p) {
  if (!p->child) return;
  kill(p->child, SIGKILL);
  while (waitpid(p->child, NULL, 0) == -1 && errno == EINTR) {
  }
}

enum { kFd = kPoint | kRestart | kChild | kSafe, kPolls = kPoint | kBreaks | kChild | kSafe, kOnlySignal = kPoint | kBreaks | kNoEnd };
const struct wait waits[] = {
    {"sem_wait", kPoint | kRestart | kChild | kSafe, open_sem, enter_sem, post, nothing},
    {"sem_timedwait", kPoint | kBreaks | kChild | kSafe, open_sem, enter_sem_timed, post, nothing},
    {"sem_clockwait", kPoint | kBreaks | kChild | kSafe, open_sem, enter_sem_clock, post, nothing},
    {"cond_wait", kPoint | kChild, open_cond, enter_cond, finish_cond, nothing},
    {"cond_timedwait", kPoint | kChild, open_cond, enter_cond_timed, finish_cond, nothing},
    {"cond_clockwait", kPoint | kChild, open_cond, enter_cond_clock, finish_cond, nothing},
    {"mutex_lock", kOwned, open_locked, enter_lock, unlock, nothing},
    {"mutex_timedlock", kOwned, open_locked, enter_lock_timed, unlock, nothing},
    {"mutex_clocklock", kOwned, open_locked, enter_lock_clock, unlock, nothing},
    {"mutex_lock inherit", kOwned, open_locked_pi, enter_lock, unlock, nothing},
    {"mtx_lock", kOwned, open_c11, enter_c11, finish_c11, nothing},
    {"rwlock_rdlock", kOwned, open_rwlock, enter_read, finish_rwlock, nothing},
    {"rwlock_wrlock", kOwned, open_rwlock_read, enter_write, finish_rwlock, nothing},
    {"rwlock_timedrdlock", kOwned, open_rwlock, enter_read_timed, finish_rwlock, nothing},
    {"rwlock_clockwrlock", kOwned, open_rwlock, enter_write_clock, finish_rwlock, nothing},
    {"barrier_wait", kChild, open_barrier, enter_barrier, finish_barrier, nothing},
    {"join", kPoint | kSafe, open_join, enter_join, finish_other, close_join},
    {"timedjoin", kPoint | kSafe, open_join, enter_join_timed, finish_other, close_join},
    {"once", kSafe, open_once, enter_once, finish_other, close_join},
    {"futex", kRestart | kChild | kSafe, open_futex, enter_futex, finish_futex, nothing},
    {"read", kFd | kJump, open_pipe, enter_read_fd, write_byte, close_fds},
    {"readv", kFd, open_pipe, enter_readv, write_byte, close_fds},
    {"recv", kFd | kJump, open_sockets, enter_recv, write_byte, close_fds},
    {"recvfrom", kFd | kJump, open_packets, enter_recvfrom, write_byte, close_fds},
    {"recvmsg", kFd | kJump, open_sockets, enter_recvmsg, write_byte, close_fds},
    {"write", kFd | kJump, open_full_pipe, enter_write_fd, drain, close_fds},
    {"send", kFd | kJump, open_full_sockets, enter_send, drain, close_fds},
    {"accept", kFd | kJump, open_listener, enter_accept, finish_accept, close_fds},
    {"poll", kPolls | kJump, open_sockets, enter_poll, write_byte, close_fds},
    {"ppoll", kPolls, open_pipe, enter_ppoll, write_byte, close_fds},
    {"select", kPolls | kJump, open_pipe, enter_select, write_byte, close_fds},
    {"pselect", kPolls | kJump, open_sockets, enter_pselect, write_byte, close_fds},
    {"epoll_wait", kPolls, open_epoll, enter_epoll, write_byte, close_extra},
    {"epoll_pwait", kPolls, open_epoll, enter_epoll_pwait, write_byte, close_extra},
    {"eventfd", kFd | kJump, open_eventfd, enter_eventfd, finish_eventfd, close_one},
    {"timerfd", kFd | kJump, open_timerfd, enter_eventfd, finish_timerfd, close_one},
    {"mq_receive", kFd, open_queue, enter_queue, finish_queue, close_one},
    {"flock", kRestart | kChild, open_flock, enter_flock, finish_flock, close_fds},
    {"fcntl", kPoint | kRestart | kChild, open_range, enter_range, finish_range, close_fds},
    {"sigwait", kPoint, nothing, enter_sigwait, finish_sigwait, nothing},
    {"sigwaitinfo", kPoint | kBreaks, nothing, enter_sigwaitinfo, finish_sigwait, nothing},
    {"sigtimedwait", kPoint | kBreaks, nothing, enter_sigtimedwait, finish_sigwait, nothing},
    {"pause", kOnlySignal | kJump, nothing, enter_pause, nothing, nothing},
    {"sigsuspend", kOnlySignal | kJump, nothing, enter_sigsuspend, nothing, nothing},
    {"nanosleep", kOnlySignal, nothing, enter_nanosleep, nothing, nothing},
    {"clock_nanosleep", kOnlySignal, nothing, enter_clock_nanosleep, nothing, nothing},
    {"thrd_sleep", kOnlySignal, nothing, enter_thrd_sleep, nothing, nothing},
    {"poll of nothing", kOnlySignal | kJump, nothing, enter_empty_poll, nothing, nothing},
    {"waitpid", kHasChild | kPoint | kRestart | kJump, open_child, enter_waitpid, finish_child, close_child},
    {"waitid", kHasChild | kPoint | kRestart, open_child, enter_waitid, finish_child, close_child},
};
int wait_count(void) { return sizeof waits / sizeof *waits; }
