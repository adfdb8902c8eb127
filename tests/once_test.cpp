// SPDX-License-Identifier: MIT
// Once: it makes one call, and no caller goes on before that has returned.
// alone: sync
#include "fiberthread/once.h"

#include "tests/test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <stdexcept>

#include "tests/single_steps.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(once, calls_once_and_all_wait_for_it, .timeout = 120) {
  for (int round = 0; round < chaos_rounds(300); round++) {
    auto o = std::make_unique<Once>();
    int value = 0, calls = 0;
    Threads t;
    for (int i = 0; i < 8; i++) {
      auto body = [&] {
        o->call([&] {
          calls++;
          if (round % 2) give_way();
          value = 5;
        });
        cr_assert_eq(value, 5);
        cr_assert(o->done());
      };
      i % 2 ? t.kernel(body) : t.fiber(body);
    }
    t.join();
    cr_assert_eq(calls, 1);
  }
}

Test(once, throwing_call_does_not_count) {
  Once o;
  std::atomic<int> calls{0}, thrown{0};
  Threads t;
  for (int i = 0; i < 8; i++) {
    auto body = [&] {
      try {
        o.call([&] {
          give_way();
          if (++calls <= 3) throw std::runtime_error("not yet");
        });
        cr_assert(o.done());
      } catch (const std::runtime_error&) {
        thrown++;
      }
    };
    i % 2 ? t.kernel(body) : t.fiber(body);
  }
  t.join();
  cr_assert_eq(thrown, 3);
  cr_assert_eq(calls, 4);
  o.call([] { cr_assert(false); });
}

#ifndef ALONE
// The same holds if the thread in the call is cancelled or calls pthread_exit. Then one of the waiters makes its own call.
Test(once, call_that_ends_its_thread_does_not_count, .timeout = 120) {
  for (bool exits : {false, true}) {
    static std::atomic<int> inside;
    static Once once[2];
    Once& o = once[exits];
    inside = 0;
    pthread_t first;
    cr_assert_eq(pthread_create(
                     &first, nullptr,
                     [](void* p) -> void* {
                       bool leaves = p != nullptr;
                       once[leaves].call([&] {
                         inside = 1;
                         while (leaves && inside == 1) give_way();
                         if (leaves) pthread_exit(PTHREAD_CANCELED);
                         for (;;) pause();
                       });
                       return nullptr;
                     },
                     exits ? &o : nullptr),
                 0);
    while (!inside) give_way();
    int calls = 0;
    Threads t;
    for (int i = 0; i < 4; i++) {
      auto body = [&] { o.call([&] { calls++; }); };
      i % 2 ? t.kernel(body) : t.fiber(body);
    }
    until_queued(&o, 4);
    if (exits) inside = 2;
    else pthread_cancel(first);
    void* result;
    cr_assert_eq(pthread_join(first, &result), 0);
    cr_assert_eq(result, PTHREAD_CANCELED);
    t.join();
    cr_assert_eq(calls, 1);
    cr_assert(o.done());
  }
}
#endif

#if defined(__x86_64__)  // single steps
// ---- once a caller has returned, it may unmap the object, wherever the thread that made the call is in its last instructions ----

struct OurOnce : Once {
  void call(void (*f)()) { Once::call(f); }
};
#ifndef ALONE
struct PosixOnce {
  pthread_once_t once = PTHREAD_ONCE_INIT;
  void call(void (*f)()) { pthread_once(&once, f); }
  bool done() { return __atomic_load_n(&once, __ATOMIC_ACQUIRE) == 2; }
};
#endif
constexpr size_t kPage = 4096;

// No thread waits, and a thread that comes then finds the object done. That takes no lock, so the thread can come between any two
// instructions.
template <class O>
void may_be_destroyed_once_done() {
  if (chaos_seed) return;  // its delays look like the end of the call
  int gone = 0;
  for (int step = 0;; step++) {
    void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* o = new (memory) O;
    Threads t;
    bool all = !steps::run(t, step, [=] { o->call([] {}); }, true);
    bool unmaps = !all && o->done();
    if (unmaps) {
      o->call([] { cr_assert(false); });
      munmap(memory, kPage);
      gone++;
    }
    steps::stage = steps::kGoOn;
    t.join();
    if (!unmaps) munmap(memory, kPage);
    if (all) break;
  }
  cr_assert_gt(gone, 0);
}
Test(once, may_be_destroyed_once_done, .timeout = 120) { may_be_destroyed_once_done<OurOnce>(); }
#ifndef ALONE
Test(once, pthread_s_may_be_destroyed_once_done, .timeout = 120) { may_be_destroyed_once_done<PosixOnce>(); }
#endif

// One thread waits in the kernel. So the thread that wakes it holds no lock that the waiter needs.
template <class O>
void may_be_destroyed_when_a_wait_has_returned() {
  if (chaos_seed) return;
  static std::atomic<bool> begun, returned;
  static std::atomic<int> waiter;
  static O* o;
  int gone = 0;
  for (int step = 0;; step++) {
    o = new (mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) O;
    begun = returned = false;
    waiter = 0;
    Threads t;
    t.kernel([] {
      (void)self();
      while (!begun) cpu_relax();
      waiter = static_cast<int>(raw_syscall(SYS_gettid));
      o->call([] { cr_assert(false); });
      munmap(o, kPage);
      returned = true;
    });
    auto waited_for = [] {
      steps::end();
      begun = true;
      until_queued(o, 1);
      steps::begin();
    };
    bool all = !steps::run(t, step, [=] { o->call(waited_for); }, true);
    if (!all && begun) {
      while (!returned && !steps::asleep(waiter)) cpu_relax();
      gone += returned;
    }
    steps::stage = steps::kGoOn;
    t.join();
    if (all) break;
  }
  cr_assert_gt(gone, 0);
}
Test(once, may_be_destroyed_when_a_wait_has_returned, .timeout = 120) { may_be_destroyed_when_a_wait_has_returned<OurOnce>(); }
#ifndef ALONE
Test(once, pthread_s_may_be_destroyed_when_a_wait_has_returned, .timeout = 120) { may_be_destroyed_when_a_wait_has_returned<PosixOnce>(); }
#endif

#ifndef ALONE
// A handler ends the thread at any instruction of the call. The next caller finds that the call was made, or makes it. (Frames of C++, as
// those of Once::call(), cannot be unwound everywhere.)
Test(once, pthread_s_thread_may_end_at_any_instruction, .timeout = 120) {
  if (chaos_seed) return;
  steps::one_worker();
  int not_made = 0;
  for (int step = 0;; step++) {
    PosixOnce o;
    static std::atomic<int> calls;
    calls = 0;
    Threads t;
    bool left = steps::leave(t, step, [&] { o.call([] { calls++; }); }, steps::Leave::ByEndOfThread);
    t.join();
    not_made += calls == 0;
    o.call([] { calls++; });
    cr_assert(calls == 1 || calls == 2);
    if (!left) break;
  }
  cr_assert_gt(not_made, 0);
}
#endif
#endif

}  // namespace
