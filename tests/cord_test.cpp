#include "sched/cord.h"

#include "tests/test.h"

#include <atomic>
#include <cstring>
#include <memory>

#include "sched/worker.h"
#include "tests/sync_threads.h"

using namespace fiberthread;

namespace {

Test(cord, a) {
  Cord c;
  std::atomic<int> inside{0}, ran{0};
  std::atomic<uint32_t> stop{0};
  Threads t;
  t.fiber([&] {
    cr_assert_eq(cord_begin(&c), 0);
    while (!stop) park_if(&stop, 0, {"cord"});
    cord_end();
  });
  while (!c.worker) yield();
  for (int i = 0; i < 20; i++)
    t.fiber([&, i] {
      cr_assert(cord_admit(&c, self()));
      yield();
      int tid = syscall(SYS_gettid), k = 0;
      for (int r = 0; r < 1000; r++) {
        cr_assert_eq(inside.fetch_add(1), 0);
        cr_assert(self()->worker == c.worker);
        for (volatile int z = 0; z < 100; z++) {}
        inside--;
        if (r % 100 == 0) usleep(100);
        yield();
      }
      ran++;
    });
  while (ran != 20) yield();
  stop = 1;
  unpark(c.worker.load()->bound);
  t.join();
  cr_assert_eq(c.fibers, 0);
}
}
