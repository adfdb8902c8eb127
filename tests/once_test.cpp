// Once: one call, and nobody goes on before it has returned.
#include "sync/once.h"

#include "tests/test.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <stdexcept>

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
          if (round % 2) yield();
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

Test(once, what_throws_has_not_been_called) {
  Once o;
  std::atomic<int> calls{0}, thrown{0};
  Threads t;
  for (int i = 0; i < 8; i++) {
    auto body = [&] {
      try {
        o.call([&] {
          yield();
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

#if defined(__x86_64__)  // the emulated tests have an unwinder of their own, which is not that of pthread_cancel
// So has what a thread was in that was cancelled, or has left by pthread_exit: one of those who wait calls its own.
Test(once, what_a_thread_ended_in_has_not_been_called, .timeout = 120) {
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
                         while (leaves && inside == 1) yield();
                         if (leaves) pthread_exit(PTHREAD_CANCELED);
                         for (;;) pause();
                       });
                       return nullptr;
                     },
                     exits ? &o : nullptr),
                 0);
    while (!inside) yield();
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

}  // namespace
