// SPDX-License-Identifier: MIT
// Cancelling fibers (fiberthread.h, fiber.h): each sentence of the contract.
// tests/programs/quick/fiber_api.sh runs this with one and many workers, under FIBERTHREAD_CHAOS and on NPTL as well.
#include "fiberthread/fiber.h"

#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

#include "tests/fiber_api.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

// Cancels a fiber during the wait. Cancels another fiber before the wait, which then ends at once.
void cancels(const char* what, int expected, const std::function<int()>& wait, bool waits_parked = true) {
  for (bool before : {false, true}) {
    std::atomic<int> e{-1};
    std::atomic<bool> go{false};
    Fiber f = Fiber::spawn([&] {
      if (before)
        while (!go) Fiber::reschedule();
      e = wait();
      cr_assert(Fiber::cancelled(), "%s", what);
      cr_assert_eq(Fiber::sleep(kLong), ECANCELED, "%s", what);  // it stays cancelled
    });
    if (!before && waits_parked) until_waits(f);
    cr_assert_eq(f.cancel(), 0);
    cr_assert_eq(f.cancel(), 0);
    go = true;
    cr_assert_eq(f.join(), 0);
    cr_assert_eq(e, expected, "%s: %d", what, e.load());
  }
}

Test(fiber_cancel, cancelling_ends_each_wait_of_this_interface) {
  cancels("yield", ECANCELED, [] { return Fiber::yield(); });
  cancels("yield_timeout", ECANCELED, [] { return Fiber::yield_timeout(kLong); });
  cancels("sleep", ECANCELED, [] { return Fiber::sleep(kLong); });
  std::atomic<bool> go{false};
  Fiber other = Fiber::spawn([&] {
    while (!go) Fiber::sleep(kMs);
  });
  cancels("join", ECANCELED, [&] { return fiberthread_join(other.handle(), nullptr); });
  cancels("join_timeout", ECANCELED, [&] { return fiberthread_join_timeout(other.handle(), nullptr, kLong); });
  go = true;
  cr_assert_eq(other.join(), 0);
}

int result(long r) { return r < 0 ? errno : 0; }

Test(fiber_cancel, cancelling_ends_libcs_waits_that_park) {
  if (on_nptl()) return;
  int p[2], s[2];
  cr_assert_eq(pipe(p), 0);
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  char buffer[4096] = {};
  cancels("read of a pipe", ECANCELED, [&] { return result(read(p[0], buffer, 1)); });
  cancels("read of a socket", ECANCELED, [&] { return result(read(s[0], buffer, 1)); });
  cancels("recv", ECANCELED, [&] { return result(recv(s[0], buffer, 1, 0)); });
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  cr_assert_eq(bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  cr_assert_eq(listen(listener, 5), 0);
  cancels("accept", ECANCELED, [&] { return result(accept(listener, nullptr, nullptr)); });
  pollfd fd{p[0], POLLIN, 0};
  cancels("poll", ECANCELED, [&] { return result(poll(&fd, 1, 60'000)); });
  cancels("poll without end", ECANCELED, [&] { return result(poll(&fd, 1, -1)); });
  cancels("select", ECANCELED, [&] {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p[0], &set);
    return result(select(p[0] + 1, &set, nullptr, nullptr, nullptr));
  });
  int e = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event);
  cancels("epoll_wait", ECANCELED, [&] { return result(epoll_wait(e, &event, 1, -1)); });
  timespec minute{60, 0};
  cancels("nanosleep", ECANCELED, [&] { return result(nanosleep(&minute, nullptr)); });
  cancels("clock_nanosleep", ECANCELED, [&] { return clock_nanosleep(CLOCK_REALTIME, 0, &minute, nullptr); });
  cancels("usleep", ECANCELED, [&] { return result(usleep(60'000'000)); });
  cancels("sleep", 1, [&] { return sleep(60) >= 59; });
  sem_t sem;
  sem_init(&sem, 0, 0);
  cancels("sem_wait", ECANCELED, [&] { return result(sem_wait(&sem)); });
  timespec late;
  clock_gettime(CLOCK_REALTIME, &late);
  late.tv_sec += 60;
  cancels("sem_timedwait", ECANCELED, [&] { return result(sem_timedwait(&sem, &late)); });
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  int sig;
  cancels("sigwait", ECANCELED, [&] { return sigwait(&set, &sig); });
  cancels("sigtimedwait", ECANCELED, [&] { return result(sigtimedwait(&set, nullptr, &minute)); });
  cancels("pause", ECANCELED, [&] { return result(pause()); });
  // A cancelled write gives up the rest. Its result is the number of bytes that have gone.
  fcntl(p[1], F_SETFL, O_NONBLOCK);
  while (write(p[1], buffer, sizeof buffer) > 0) {
  }
  fcntl(p[1], F_SETFL, 0);
  cancels("write", ECANCELED, [&] { return result(write(p[1], buffer, sizeof buffer)); });
}

// An event loop whose waits have put its worker to sleep waits in its own call, in the kernel (OwnWait in sched/fiber.h).
Test(fiber_cancel, cancelling_ends_event_loops_in_their_own_call) {
  if (on_nptl()) return;
  int e = epoll_create1(0), in_own_calls = 0;
  for (uint64_t i = 0; i < 200; i++) {
    Fiber f = Fiber::spawn([&] {
      epoll_event event;
      int r = 0;
      for (int n = 0; n < 4 && r == 0; n++) r = epoll_wait(e, &event, 1, 1);
      if (r == 0) r = epoll_wait(e, &event, 1, -1);
      cr_assert(r == -1 && errno == ECANCELED);
    });
    // Every other time near the moment at which the last wait begins.
    Fiber::sleep(i % 2 ? 4 * kMs + i * 5'000 : 7 * kMs);
    in_own_calls += record(f)->run.in_own_call.load();
    cr_assert_eq(f.cancel(), 0);
    cr_assert_eq(f.join(), 0);
  }
  cr_assert_gt(in_own_calls, 0);
  close(e);
}

Test(fiber_cancel, results_that_are_there_take_precedence_over_a_cancel) {
  int p[2];
  cr_assert_eq(pipe(p), 0);
  cr_assert_eq(write(p[1], "xy", 2), 2);
  sem_t sem;
  sem_init(&sem, 0, 1);
  Fiber other = Fiber::spawn([] {});
  until([&] { return record(other)->join.done.load() != 0; });
  Fiber f = Fiber::create([&] {
    char c;
    cr_assert(Fiber::cancelled());  // the fiber was cancelled before it began
    cr_assert_eq(read(p[0], &c, 1), 1);
    pollfd fd{p[0], POLLIN, 0};
    cr_assert_eq(poll(&fd, 1, -1), 1);
    cr_assert_eq(sem_wait(&sem), 0);
    cr_assert_eq(fiberthread_join(other.handle(), nullptr), 0);
    cr_assert_eq(Fiber::yield(), ECANCELED);
  });
  FiberRef gone = other;
  cr_assert_eq(f.cancel(), 0);
  f.start();
  f.join();
  cr_assert_eq(other.detach(), ESRCH);
  cr_assert_eq(gone.cancel(), ESRCH);
  other.join();
  new (&other) Fiber;
}

Test(fiber_cancel, a_condition_wait_has_one_spurious_wake_up) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t c = PTHREAD_COND_INITIALIZER;
  std::atomic<int> times{0};
  bool finished = false;
  Fiber f = Fiber::spawn([&] {
    pthread_mutex_lock(&m);
    while (!finished) {
      cr_assert_eq(pthread_cond_wait(&c, &m), 0);
      times++;
    }
    pthread_mutex_unlock(&m);
  });
  until_waits(f);
  f.cancel();
  until([&] { return times == 1; });
  until_waits(f);
  Fiber::sleep(2 * kMs);
  pthread_mutex_lock(&m);
  cr_assert_eq(times, 1);
  finished = true;
  pthread_cond_signal(&c);
  pthread_mutex_unlock(&m);
  f.join();
  cr_assert_eq(times, 2);
}

Test(fiber_cancel, locks_and_pthread_join_are_not_ended) {
  pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&m);
  std::atomic<int> at{0};
  pthread_t other;
  pthread_create(
      &other, nullptr,
      [](void* p) -> void* {
        usleep(20'000);
        return p;
      },
      nullptr);
  Fiber f = Fiber::spawn([&] {
    cr_assert_eq(pthread_mutex_lock(&m), 0);
    at = 1;
    pthread_mutex_unlock(&m);
    cr_assert_eq(pthread_join(other, nullptr), 0);
    at = 2;
  });
  until_waits(f);
  f.cancel();
  Fiber::sleep(5 * kMs);
  cr_assert_eq(at, 0);
  pthread_mutex_unlock(&m);
  f.join();
  cr_assert_eq(at, 2);
}

Test(fiber_cancel, while_it_is_not_cancellable_it_waits_as_ever) {
  std::atomic<int> at{0};
  Fiber f = Fiber::spawn([&] {
    cr_assert(Fiber::set_cancellable(false));
    cr_assert_not(Fiber::set_cancellable(false));
    at = 1;
    cr_assert_eq(Fiber::yield_timeout(kLong), 0);
    cr_assert_not(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(kMs), 0);
    cr_assert_not(Fiber::set_cancellable(true));
    cr_assert(Fiber::cancelled());
    cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
  });
  until([&] { return at == 1; });
  f.cancel();
  Fiber::sleep(2 * kMs);
  f.wakeup();
  f.join();
}

Test(fiber_cancel, foreign_threads_and_plain_ones_are_cancelled_and_woken_alike) {
  std::atomic<fiberthread_t> handle{nullptr};
  std::atomic<int> at{0};
  auto body = [&] {
    handle = fiberthread_self();
    cr_assert_eq(Fiber::yield(), 0);
    at = 1;
    cr_assert_eq(Fiber::sleep(kLong), ECANCELED);
    cr_assert_eq(Fiber::yield(), ECANCELED);
  };
  for (bool kernel : {false, true}) {
    Threads t;
    if (kernel) t.kernel(body);
    else t.fiber(body);
    until([&] { return handle != nullptr; });
    FiberRef f = handle.load();
    f.wakeup();
    until([&] { return at == 1; });
    cr_assert_eq(f.cancel(), 0);
    t.join();
    if (!kernel) cr_assert_eq(f.cancel(), ESRCH);
    handle = nullptr;
    at = 0;
  }
}

}  // namespace
