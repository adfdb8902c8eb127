// SPDX-License-Identifier: MIT
// Barriers, spin locks and pthread_once: load, sharing, freeing at once. Initialisers that throw, are cancelled, nest, or run while another
// thread forks.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
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

static void* page() {
  void* p = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(p != MAP_FAILED);
  return p;
}
static void unmap(void* p) { assert(munmap(p, 4096) == 0); }

// The serial thread, or the first one that is back, destroys and unmaps the barrier while the others are on their way out. Each round has
// one serial thread.
static void freed_barriers() {
  enum { kThreads = 5 };
  for (int round = 0; round < 300; round++) {
    auto* b = static_cast<pthread_barrier_t*>(page());
    pthread_barrier_init(b, nullptr, kThreads);
    std::atomic<int> serial{0}, back{0};
    std::vector<std::thread> t;
    for (int i = 0; i < kThreads; i++)
      t.emplace_back([&, b] {
        int e = pthread_barrier_wait(b);
        bool mine = e == PTHREAD_BARRIER_SERIAL_THREAD;
        assert(mine || e == 0);
        serial += mine;
        bool first = back++ == 0;
        if (round % 2 ? !first : !mine) return;
        assert(pthread_barrier_destroy(b) == 0);
        unmap(b);
      });
    for (auto& x : t) x.join();
    assert(serial == 1 && back == kThreads);
  }
}

// A thread that has waited for another one's initialiser unmaps the object at once.
static void freed_onces() {
  static std::atomic<int> runs;
  for (int round = 0; round < 300; round++) {
    auto* o = new (page()) pthread_once_t(PTHREAD_ONCE_INIT);
    runs = 0;
    static thread_local bool ran;
    std::vector<std::thread> t;
    for (int i = 0; i < 2; i++)
      t.emplace_back([o] {
        pthread_once(o, [] {
          ran = true;
          runs++;
          sched_yield();
        });
        assert(runs == 1);
        if (!ran) unmap(o);
      });
    for (auto& x : t) x.join();
    assert(runs == 1);
  }
}

static void between_processes() {
  struct Shared {
    pthread_barrier_t barrier;
    pthread_spinlock_t spin;
    int serial;
    long n;
  };
  auto* s = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t a;
  pthread_barrierattr_init(&a);
  pthread_barrierattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  assert(pthread_barrier_init(&s->barrier, &a, 2) == 0);
  pthread_spin_init(&s->spin, PTHREAD_PROCESS_SHARED);
  pid_t child = fork();
  for (int i = 0; i < 500; i++) {
    bool serial = pthread_barrier_wait(&s->barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
    pthread_spin_lock(&s->spin);
    s->serial += serial;
    s->n++;
    pthread_spin_unlock(&s->spin);
  }
  if (child == 0) _exit(0);
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  assert(s->serial == 500 && s->n == 1000);
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

static pthread_once_t outer_once = PTHREAD_ONCE_INIT, inner_once = PTHREAD_ONCE_INIT, forked_once = PTHREAD_ONCE_INIT;
static std::atomic<int> inner_runs{0};
static void inner() { inner_runs++; }
static void outer() {
  pthread_once(&inner_once, inner);
  throw 1;
}
static std::atomic<int> release{0}, in_initialiser{0}, forked_runs{0};
static void slow() {
  forked_runs++;
  in_initialiser = 1;
  while (!release) usleep(1000);
}

static void nesting_and_forking() {
  for (int i = 1; i <= 3; i++) {
    int caught = 0;
    try {
      pthread_once(&outer_once, outer);
    } catch (int) {
      caught = 1;
    }
    assert(caught && inner_runs == 1);
  }
  // In the child no thread runs the initialiser, so it runs again.
  std::thread t([] { pthread_once(&forked_once, slow); });
  while (!in_initialiser) sched_yield();
  pid_t child = fork();
  if (child == 0) {
    release = 1;
    pthread_once(&forked_once, slow);
    pthread_once(&forked_once, slow);
    _exit(forked_runs == 2 ? 0 : 1);
  }
  int status;
  assert(waitpid(child, &status, 0) == child && status == 0);
  release = 1;
  t.join();
  pthread_once(&forked_once, slow);
  assert(forked_runs == 1);
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
  pthread_create(
      &first, nullptr,
      [](void* p) -> void* {
        pthread_once(&cancelled_once, wait_to_be_cancelled);
        return p;
      },
      nullptr);
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
  freed_barriers();
  spins();
  between_processes();
  onces();
  freed_onces();
  nesting_and_forking();
  puts("ok");
}
