// SPDX-License-Identifier: MIT
// How many slots there are, and which workers have them.
// alone: sched
#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "sched/poller.h"
#include "sched/run/parts.h"
#include "sched/syscall.h"
#include "sched/worker.h"
#include "tests/test.h"

#include "tests/fibers.h"

using namespace fiberthread;
using namespace fibers;

namespace {
void use_workers(uint32_t n) { options.workers = n; }

std::atomic<FiberRecord*> waiter{nullptr};
}  // namespace

// Workers asleep in the kernel lose their slots. There are more readers than workers, and each waits for the one before.
Test(slots, slots_of_sleepers_are_handed_over) {
  use_workers(1);
  static int pipes[17][2];
  for (auto& p : pipes) cr_assert_eq(pipe(p), 0);
  auto pass = [](void* p) -> void* {
    auto i = reinterpret_cast<long>(p);
    char c;
    // read() would park the fiber.
    if (raw_syscall(SYS_read, pipes[i][0], arg(&c), 1) != 1 || write(pipes[i + 1][1], &c, 1) != 1) abort();
    return nullptr;
  };
  Handle t[16];
  for (long i = 0; i < 16; i++) t[i] = spawn(pass, reinterpret_cast<void*>(i));
  // Not before: if main is preempted here, each reader would find its byte there.
  auto begin = [](void*) -> void* {
    char c = 'x';
    while (!statistics.handovers.load()) give_way();
    if (write(pipes[0][1], &c, 1) != 1) abort();
    return nullptr;
  };
  Handle beginning = spawn(begin);
  char c;
  cr_assert_eq(raw_syscall(SYS_read, pipes[16][0], arg(&c), 1), 1);
  join(beginning);
  for (auto& x : t) join(x);
}

// A worker that has no slot, and can get none, does not wait for events, since it could only pass them on. A worker that has watched since
// before all slots were in use stops watching at the first event.
Test(slots, nobody_watches_the_poller_while_all_slots_are_in_use) {
  use_workers(1);
  static int pipes[2][2];
  static std::atomic<int> got{0}, watched_before{0}, watched_after{0};
  static std::atomic<uint32_t> go{0};
  for (auto& p : pipes) cr_assert_eq(pipe(p), 0);
  cr_assert_eq(fcntl(pipes[0][0], F_SETFL, O_NONBLOCK), 0);
  auto count = [](void*) -> void* {
    for (;;) {
      char c;
      PollSeen seen = poll_seen(pipes[0][0]);
      long n = raw_syscall(SYS_read, pipes[0][0], arg(&c), 1);
      if (n == 1) got++;
      else if (n != -EAGAIN) return nullptr;
      PollItem item{.fd = pipes[0][0], .events = EPOLLIN, .seen = seen, .exclusive = true};
      if (n != 1) poll_wait_any(&item, 1);
    }
  };
  auto sleep_in_kernel = [](void*) -> void* {
    char c;
    if (raw_syscall(SYS_read, pipes[1][0], arg(&c), 1) != 1) abort();
    return nullptr;
  };
  // This runs mostly on the worker that did not watch.
  auto keep_slot = [](void*) -> void* {
    char c = 'x';
    waiter = self();
    for (int i = 1; i <= 1000 && watched_before.load() < 5; i++) {
      for (uint32_t told; (told = go.load()) < static_cast<uint32_t>(i);) park_if(&go, told, {"test"});
      bool before = poll_watched() && !any_free_slot();
      if (write(pipes[0][1], &c, 1) != 1) abort();
      if (before) {
        watched_before++;
        while (poll_watched() && !any_free_slot()) {
        }
        for (uint64_t end = now_ns() + 200'000; now_ns() < end;) {
        }
        if (poll_watched() && !any_free_slot()) watched_after++;
      }
      while (got.load() < i) give_way();
    }
    return nullptr;
  };
  Handle counts = spawn(count);
  want_slots(1);  // the test's framework may have started with more
  nap(20'000);    // idle, so that surplus slots go
  Handle sleeper = spawn(sleep_in_kernel), keeps = spawn(keep_slot);
  while (statistics.handovers.load() == 0) nap(1000);
  char c = 'x';
  cr_assert_eq(write(pipes[1][1], &c, 1), 1);
  join(sleeper);
  for (int i = 1; i <= 1000 && watched_before.load() < 5; i++) {
    nap(2000);
    go++;
    if (FiberRecord* f = waiter) unpark(f);
  }
  join(keeps);
  close(pipes[0][1]);
  join(counts);
  cr_assert_eq(watched_after.load(), 0, "%d of %d", watched_after.load(), watched_before.load());
}

// No fiber yields, and one waits. As soon as sysmon sees that, there are slots for all, and later the slots go again.
Test(slots, slots_grow_for_spinners_and_go_again) {
  use_workers(1);
  static std::atomic<int> arrived{0};
  static std::atomic<bool> end{false};
  auto spin = [](void*) -> void* {
    arrived++;
    while (!end.load()) {
    }
    return nullptr;
  };
  Handle t[3];
  for (auto& x : t) x = spawn(spin);
  // Not slots_wanted(): if main lacks the CPU, sysmon may have taken its wish back by then, though the slots are still held.
  for (uint32_t made = 0; arrived.load() < 3 || made < 4;) all_slots(&made);
  end = true;
  for (auto& x : t) join(x);
  while (slots_wanted() > 1) nap(1000);
  cr_assert_eq(slots_wanted(), 1u);
}

#ifdef ALONE
void ask_for(uint32_t slots) { sched_set_concurrency(slots); }
#else
void ask_for(int slots) { cr_assert_eq(pthread_setconcurrency(slots), 0); }
#endif

Test(slots, concurrency_sets_the_number_of_slots) {
  use_workers(0);
  join(spawn([](void*) -> void* { return nullptr; }));
  cr_assert_eq(slots_wanted(), cpu_count());
  ask_for(7);
  cr_assert_eq(slots_wanted(), 7u);
  ask_for(0);
  cr_assert_eq(slots_wanted(), cpu_count());
}

// Not taken for a spinner, since more than two registers change.
void* computed_until(const std::atomic<bool>& over) {
  uint32_t x = 1, y = 2, z = 3, u = 4;
  while (!over) {
    x = x * 1664525 + y;
    y = (y << 5 | y >> 27) ^ z;
    z = z * 22695477 + u;
    u += x >> 3;
  }
  return reinterpret_cast<void*>(static_cast<uintptr_t>(x ^ y ^ z ^ u) | 1);
}

// Where the kernel gives no timers, as under an emulator, sysmon takes the slot of a fiber that keeps others waiting, which goes on without it. Then
// there may never be a reserve.
class Patience {
 public:
  bool over() const { return now_ns() > until_; }

 private:
  uint64_t until_ = now_ns() + 30'000'000'000;
};

// While a fiber computes in the only slot, another worker runs those that wake up. Once that fiber has ended, the reserve goes.
Test(slots, who_wakes_beside_a_hog_has_the_reserve, .timeout = 120) {
  use_workers(1);
  static std::atomic<bool> over{false};
  static std::atomic<FiberRecord*> hog{nullptr};
  auto compute = [](void*) -> void* {
    hog = self();
    return computed_until(over);
  };
  static bool seen = false;
  auto wake = [](void*) -> void* {
    for (Patience patience; !seen && !patience.over();) {
      nap(1000);
      Worker* w = self()->run.worker;
      if (!has_reserve(w)) continue;
      cr_assert_neq(w, __atomic_load_n(&hog.load()->run.worker, __ATOMIC_RELAXED));
      seen = true;
    }
    over = true;
    return nullptr;
  };
  Handle computing = spawn(compute);
  join(spawn(wake));
  join(computing);
  while (reserve_is_wanted() || reserve_count.load() != 0) nap(1000);
  cr_assert_eq(circulating.load(), slots_wanted());
  if (!seen) cr_skip_test("there was no reserve");
}

// Of eight hogs on one worker, one that is found to be a hog while it has a slot of the reserve soon gives that up.
Test(slots, hogs_get_no_slot_of_the_reserve, .timeout = 120) {
  use_workers(1);
  static std::atomic<bool> over{false};
  auto compute = [](void*) -> void* { return computed_until(over); };
  static int looks = 0;
  auto look = [](void*) -> void* {
    int with_hogs = 0;
    for (Patience patience; looks < 200 && !patience.over();) {
      nap(2000);
      if (!reserve_is_wanted()) continue;
      int here = 0;
      for (Worker* w = all_workers(); w; w = w->thread.all_next) {
        FiberRecord* f = w->run.running.load();
        here += f && is_hog(f) && has_reserve(w);
      }
      if (looks++ >= 100) with_hogs += here != 0;  // before, they are not found yet
    }
    over = true;
    cr_assert_lt(with_hogs, 50, "in %d looks of 100", with_hogs);
    return nullptr;
  };
  Handle computing[8];
  for (auto& x : computing) x = spawn(compute);
  join(spawn(look));
  for (auto& x : computing) join(x);
  if (looks < 200) cr_skip_test("there was no reserve");
}

// Beside a fiber that computes in the only slot, the caller computes for a millisecond at a time between waits. Returns in how many of its turns 101
// to 200 it had a slot of the reserve; by then the scheduler knows it. Returns -1 if there was no reserve.
int turns_on_reserve(void (*wait)()) {
  int turns = 0, on_reserve = 0;
  Patience patience;
  while (!reserve_is_wanted() && !patience.over()) nap(2000);  // the turns take so much of the slot that there might never be one
  for (; turns < 200 && !patience.over(); wait()) {
    {
      Busy busy;
      if (reserve_is_wanted() && turns++ >= 100) on_reserve += has_reserve(self()->run.worker);
    }
    for (uint64_t end = now_ns() + 1'000'000; now_ns() < end;) {
    }
  }
  return turns < 200 ? -1 : on_reserve;
}

// The fiber wakes by its own timer, which a worker of the reserve finds. Another worker runs it even so. A call that sleeps in the kernel does not
// end its run.
Test(slots, who_runs_for_long_gets_no_slot_of_the_reserve, .timeout = 120) {
  use_workers(1);
  static std::atomic<bool> over{false};
  static int on_reserve;
  auto compute = [](void*) -> void* { return computed_until(over); };
  auto compute_and_wait = [](void*) -> void* {
    on_reserve = turns_on_reserve([] {
      {
        Blocking writes;
        timespec t{0, 50'000};
        raw_syscall(SYS_nanosleep, arg(&t), 0);
      }
      nap(200);
    });
    over = true;
    return nullptr;
  };
  Handle t[3] = {spawn(compute), spawn(compute), spawn(compute_and_wait)};
  for (auto& x : t) join(x);
  if (on_reserve < 0) cr_skip_test("there was no reserve");
  cr_assert_lt(on_reserve, 50, "in %d turns of 100", on_reserve);
}

// The wait may have made the fiber the owner of a lock. So the worker of the reserve that wakes it runs it, too.
Test(slots, who_may_own_a_lock_has_the_reserve, .timeout = 120) {
  use_workers(1);
  static std::atomic<bool> over{false};
  static std::atomic<uint32_t> turn{0};
  static int on_reserve;
  auto compute = [](void*) -> void* { return computed_until(over); };
  auto compute_and_wait = [](void*) -> void* {
    waiter = self();
    on_reserve = turns_on_reserve([] {
      uint32_t seen = turn.load();
      while (turn.load() == seen) park_if(&turn, seen, {"lock"});
    });
    over = true;
    return nullptr;
  };
  auto wake = [](void*) -> void* {
    while (!over) {
      nap(reserve_is_wanted() ? 200 : 2000);
      turn++;
      if (FiberRecord* f = waiter) unpark(f);
    }
    return nullptr;
  };
  Handle t[3] = {spawn(compute), spawn(wake), spawn(compute_and_wait)};
  for (auto& x : t) join(x);
  if (on_reserve < 0) cr_skip_test("there was no reserve");
  cr_assert_gt(on_reserve, 50, "in %d turns of 100", on_reserve);
}

#ifdef ALONE  // Elsewhere the test's framework has threads, which are fibers. A worker of theirs would run these fibers, which are made up.
// Where other fibers always wait, a worker's hogs come from the line and from the heavy ones in turn.
Test(slots, hogs_and_heavy_ones_have_their_due_in_turn) {
  static Worker w;
  static FiberRecord fibers[8];
  for (FiberRecord& f : fibers) f.run.worker = &w;
  for (int i = 0; i < 4; i++) {
    push_hog(&w, &fibers[i]);
    heavy_queue.push(&fibers[4 + i]);
  }
  for (int i = 0; i < 2; i++) {
    FiberRecord *a = pop_hog(&w, true), *b = pop_hog(&w, true);
    cr_assert_neq(a < &fibers[4], b < &fibers[4]);
  }
  for (int i = 0; i < 2; i++) cr_assert_geq(pop_hog(&w, false), &fibers[4]);  // otherwise heavy ones come first
  for (int i = 0; i < 2; i++) cr_assert_not_null(pop_hog(&w, true));
  cr_assert_null(pop_hog(&w, true));
}
#endif

// There shall be fewer slots, of either kind, while workers hold them: these give theirs up though they have more to run.
Test(slots, slots_of_both_kinds_come_and_go_while_they_are_held) {
  use_workers(2);
  options.reserve = 0;  // sysmon wants none
  static std::atomic<bool> over{false};
  auto work = [](void*) -> void* {
    while (!over) give_way();
    return nullptr;
  };
  Handle t[16];
  for (auto& x : t) x = spawn(work);
  for (uint32_t i = 0; i < 300; i++) {
    want_reserve(i % 4);
    want_slots(1 + i / 2 % 3);
    nap(100);
  }
  want_reserve(0);
  want_slots(2);
  while (reserve_count.load() != 0 || circulating.load() != 2) nap(1000);
  over = true;
  for (auto& x : t) join(x);
  for (uint32_t i = 0, n = slot_count.load(); i < n; i++) cr_assert(!is_reserve(slots[i]));
}

// A loop with a pause waits for something, whatever else its registers do. One tick that finds the fiber there is enough.
Test(slots, a_loop_with_a_pause_is_found) {
  use_workers(1);
  options.reserve = 0;
  static std::atomic<bool> found{false};
  auto wait = [](void*) -> void* {
    uint32_t a = 1, b = 2, c = 3, d = 4, e = 5;
    while (!self()->turns.place.probably_waits()) {
      a = a * 1664525 + 1013904223, b ^= a >> 3, c += b, d ^= c << 1, e += d;
      for (int i = 0; i < 8; i++) cpu_relax();
    }
    found = true;
    return reinterpret_cast<void*>(static_cast<uintptr_t>(a + b + c + d + e));
  };
  auto compute = [](void*) -> void* {
    uint32_t x = 1;
    while (!found) x = x * 1664525 + 1013904223;
    return reinterpret_cast<void*>(static_cast<uintptr_t>(x | 1));
  };
  Handle waiting = spawn(wait), computing[8];  // more than slots would grow for
  for (auto& x : computing) x = spawn(compute);
  join(waiting);
  for (auto& x : computing) join(x);
}
