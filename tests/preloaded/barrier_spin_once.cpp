// Barriers, spin locks and pthread_once, its initialiser throwing or being cancelled.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

static void barriers() {
  enum { kThreads = 13, kRounds = 400 };
  auto* b = new pthread_barrier_t;
  assert(pthread_barrier_init(b, nullptr, 0) == EINVAL);
  assert(pthread_barrier_init(b, nullptr, kThreads) == 0);
  std::atomic<int> arrived{0}, serial{0};
  std::vector<std::thread> t;
  for (int i = 0; i < kThreads; i++)
    t.emplace_back([&] {
      for (int r = 0; r < kRounds; r++) {
        arrived++;
        int e = pthread_barrier_wait(b);
        assert(e == 0 || e == PTHREAD_BARRIER_SERIAL_THREAD);
        serial += e == PTHREAD_BARRIER_SERIAL_THREAD;
        assert(arrived >= (r + 1) * kThreads);
      }
    });
  for (auto& x : t) x.join();
  assert(serial == kRounds);
  assert(pthread_barrier_destroy(b) == 0);
  delete b;
}

static void spins() {
  pthread_spinlock_t l;
  pthread_spin_init(&l, PTHREAD_PROCESS_PRIVATE);
  long n = 0;
  std::vector<std::thread> t;
  for (int i = 0; i < 16; i++)
    t.emplace_back([&] {
      for (int r = 0; r < 500; r++) {
        if (r % 7 == 0) {
          while (pthread_spin_trylock(&l) == EBUSY) sched_yield();
        } else {
          pthread_spin_lock(&l);
        }
        long v = n;
        if (r % 50 == 0) sched_yield();
        n = v + 1;
        pthread_spin_unlock(&l);
      }
    });
  for (auto& x : t) x.join();
  assert(n == 16 * 500);
  assert(pthread_spin_lock(&l) == 0 && pthread_spin_trylock(&l) == EBUSY);
}

static pthread_once_t cancelled_once = PTHREAD_ONCE_INIT;
static std::atomic<int> started{0}, finished{0};
static void wait_to_be_cancelled() {
  if (started++ == 0)
    for (;;) pause();
  finished++;
}

static void onces() {
  for (int round = 0; round < 100; round++) {
    std::once_flag flag;
    std::atomic<int> tries{0}, caught{0};
    std::vector<std::thread> t;
    for (int i = 0; i < 8; i++)
      t.emplace_back([&] {
        try {
          std::call_once(flag, [&] {
            sched_yield();
            if (++tries < 4) throw std::runtime_error("again");
          });
        } catch (std::runtime_error&) {
          caught++;
        }
      });
    for (auto& x : t) x.join();
    assert(tries == 4 && caught == 3);
  }
  pthread_t first;
  pthread_create(&first, nullptr, [](void* p) -> void* { pthread_once(&cancelled_once, wait_to_be_cancelled); return p; }, nullptr);
  while (started == 0) sched_yield();
  std::vector<std::thread> t;
  for (int i = 0; i < 4; i++) t.emplace_back([] { pthread_once(&cancelled_once, wait_to_be_cancelled); });
  pthread_cancel(first);
  void* r;
  pthread_join(first, &r);
  assert(r == PTHREAD_CANCELED);
  for (auto& x : t) x.join();
  assert(started == 2 && finished == 1);
}

int main() {
  barriers();
  spins();
  onces();
  puts("ok");
}
