// Once: one call, and nobody goes on before it has returned.
#include "sync/once.h"

#include "tests/test.h"

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

}  // namespace
