// SPDX-License-Identifier: MIT
// Cords' messages and callbacks: what each sentence about them in fiberthread.h says, for all kinds of users.
#include "fiberthread/cord.h"

#include "tests/test.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "tests/cords.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(cord_messages, messages_in_order) {
  as_both([] {
    Cord cord("receives");
    cr_assert_eq(Cord::receive(nullptr, 0), EPERM);
    std::vector<uintptr_t> got;
    for (uintptr_t i = 1; i <= 50; i++) cr_assert_eq(cord.send(number(i)), 0);  // no receiver is there yet
    Fiber reader = cord.spawn([&] {
      void* m;
      while (Cord::receive(&m) == 0) got.push_back(reinterpret_cast<uintptr_t>(m));
      cr_assert_eq(Cord::receive(&m), EPIPE);
      cr_assert_eq(Cord::receive(&m, 0), EPIPE);
    });
    for (uintptr_t i = 51; i <= 5000; i++) cr_assert_eq(cord.send(number(i)), 0);
    cord.close();
    cr_assert_eq(cord.send(nullptr), EPIPE);
    cr_assert_eq(cord.call([] {}), EPIPE);
    cr_assert_eq(reader.join(), 0);
    cr_assert_eq(got.size(), 5000u);
    for (uintptr_t i = 0; i < 5000; i++) cr_assert_eq(got[i], i + 1);
  });
}

Test(cord_messages, receivers_get_them_in_turn_and_may_give_up) {
  Cord cord("turns");
  std::vector<Fiber> fibers;
  std::atomic<int> waiting{0};
  for (uintptr_t i = 0; i < 10; i++)
    fibers.push_back(cord.spawn([&, i]() -> void* {
      void* m = nullptr;
      waiting++;
      int e = Cord::receive(&m);
      if (i == 3) {
        cr_assert_eq(e, ECANCELED);
        cr_assert_eq(Cord::receive(&m, 0), ECANCELED);
      } else {
        cr_assert_eq(e, 0);
      }
      return m;
    }));
  while (waiting < 10) give_way();
  Fiber late = cord.spawn([&] {
    void* m;
    cr_assert_eq(Cord::receive(&m, 0), ETIMEDOUT);
    cr_assert_eq(Cord::receive(&m, kMs), ETIMEDOUT);
  });
  late.join();
  fibers[3].cancel();
  void* result;
  cr_assert_eq(fibers[3].join(&result), 0);
  for (uintptr_t i = 0; i < 10; i++)
    if (i != 3) cord.send(number(i));
  for (uintptr_t i = 0; i < 10; i++)
    if (i != 3) {
      cr_assert_eq(fibers[i].join(&result), 0);
      cr_assert_eq(result, number(i));
    }
}

Test(cord_messages, callbacks) {
  as_both([] {
    Cord cord("calls");
    std::vector<int> order;
    int tid = 0;
    for (int i = 0; i < 100; i++)
      cr_assert_eq(cord.call([&, i] {
        order.push_back(i);
        cr_assert_eq(fiberthread_cord_self(), cord.handle());
        if (!tid) tid = kernel_tid();
        cr_assert_eq(kernel_tid(), tid);
      }),
                   0);
    Fiber f = cord.spawn([&] { cr_assert(!tid || kernel_tid() == tid); });
    f.join();
    cr_assert_eq(cord.join(), 0);
    cr_assert_eq(order.size(), 100u);
    for (int i = 0; i < 100; i++) cr_assert_eq(order[static_cast<size_t>(i)], i);
  });
}

Test(cord_messages, a_callback_must_not_give_way) {
  Cord cord("callback");
  std::atomic<int> step{0};
  std::mutex mutex;
  bool in_callback = false;
  int ran_inside = 0;
  std::atomic<bool> stop{false};
  Fiber busy = cord.spawn([&] {
    while (!stop) {
      if (in_callback) ran_inside++;
      give_way();
    }
  });
  mutex.lock();
  cord.call([&] {
    in_callback = true;
    cr_assert_eq(fiberthread_yield(), EPERM);
    cr_assert_eq(fiberthread_yield_timeout(kMs), EPERM);
    cr_assert_eq(fiberthread_sleep(kMs), EPERM);
    fiberthread_t f;
    cr_assert_eq(fiberthread_new(&f, nullptr, [](void* p) { return p; }), 0);
    cr_assert_eq(fiberthread_call(f, nullptr), EPERM);
    cr_assert_eq(fiberthread_discard(f), 0);
    void* m;
    cr_assert_eq(Cord::receive(&m), EPERM);
    cr_assert_eq(fiberthread_join(busy.handle(), nullptr), ECANCELED);
    fiberthread_reschedule();
    give_way();
    step = 1;
    mutex.lock();  // a call that cannot fail waits, and the cord waits with it
    mutex.unlock();
    in_callback = false;
    step = 2;
  });
  while (step != 1) usleep(100);
  usleep(3000);
  cr_assert_eq(step, 1);
  mutex.unlock();
  while (step != 2) usleep(100);
  stop = true;
  busy.join();
  cr_assert_eq(ran_inside, 0);
  // Afterwards the scheduler fiber is as before.
  std::atomic<bool> again{false};
  cord.call([&] { again = true; });
  while (!again) usleep(100);
}

}  // namespace
