// SPDX-License-Identifier: MIT
// A thread keeps its own state when it moves between kernel threads: errno, __thread, thread_local with destructors,
// malloc, locale, strerror, exceptions in flight, keys, getaddrinfo, dlerror. Preloaded, the program also shows that threads did move.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static long kernel_tid() {  // the kernel thread's id, which libc's function would not return
  long r;
#if defined(__x86_64__)
  asm volatile("syscall" : "=a"(r) : "a"(SYS_gettid) : "rcx", "r11", "memory");
#else
  register long x8 asm("x8") = SYS_gettid;
  register long x0 asm("x0");
  asm volatile("svc 0" : "=r"(x0) : "r"(x8) : "memory");
  r = x0;
#endif
  return r;
}

static std::atomic<long> moves{0}, destroyed{0};
static __thread int simple;
struct Counted {
  int value = 0;
  ~Counted() { destroyed += value; }
};
static thread_local Counted counted;
static thread_local std::string text;
static pthread_key_t key;
static std::atomic<long> key_sum{0};

static void move_on(unsigned& seed) {
  long before = kernel_tid();
  if (rand_r(&seed) % 3 == 0) usleep(100);
  else sched_yield();
  moves += kernel_tid() != before;
}

static void work(int id) {
  unsigned seed = static_cast<unsigned>(id) + 1;
  locale_t french = newlocale(LC_ALL_MASK, id % 2 ? "C.UTF-8" : "C", nullptr);
  for (int i = 0; i < 40; i++) {
    errno = id * 100 + i;
    simple = id;
    counted.value = 1;
    text = "thread " + std::to_string(id);
    pthread_setspecific(key, reinterpret_cast<void*>(static_cast<long>(id + 1)));
    locale_t old = uselocale(french);
    std::string* heap = new std::string(static_cast<size_t>(id * 10 + i), 'x');
    char* error = strerror(1000 + id);  // the thread's own buffer
    assert(dlopen(("/nonexistent-" + std::to_string(id)).c_str(), RTLD_NOW) == nullptr);
    int* where = &errno;
    errno = id * 100 + i;
    move_on(seed);
    assert(errno == id * 100 + i && &errno == where);
    assert(strstr(dlerror(), std::to_string(id).c_str()));
    assert(simple == id && counted.value == 1 && text == "thread " + std::to_string(id));
    assert(pthread_getspecific(key) == reinterpret_cast<void*>(static_cast<long>(id + 1)));
    assert(uselocale(nullptr) == french && uselocale(old) == french);
    assert(strstr(error, std::to_string(1000 + id).c_str()));
    assert(*heap == std::string(static_cast<size_t>(id * 10 + i), 'x'));
    delete heap;
    try {
      try {
        throw std::runtime_error(std::to_string(id));
      } catch (std::runtime_error& e) {
        move_on(seed);
        assert(e.what() == std::to_string(id));
        try {
          throw id;
        } catch (int n) {
          move_on(seed);
          assert(n == id && std::uncaught_exceptions() == 0);
        }
        move_on(seed);
        throw;
      }
    } catch (std::exception& e) {
      assert(e.what() == std::to_string(id));
    }
    if (i % 10 == 0) {
      addrinfo hints{}, *found = nullptr;
      hints.ai_flags = AI_NUMERICHOST;
      std::string host = "10.1.2." + std::to_string(id);
      assert(getaddrinfo(host.c_str(), "80", &hints, &found) == 0);
      move_on(seed);
      char back[64];
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_addr, back, sizeof back);
      assert(back == host);
      freeaddrinfo(found);
      found = nullptr;
      hints.ai_flags = 0;
      if (getaddrinfo("localhost", nullptr, &hints, &found) == 0) freeaddrinfo(found);
    }
  }
  freelocale(french);
}

int main() {
  pthread_key_create(&key, [](void* p) { key_sum += reinterpret_cast<long>(p); });
  enum { kThreads = 64 };
  for (int round = 0; round < 3; round++) {
    std::vector<std::thread> t;
    for (int i = 0; i < kThreads; i++) t.emplace_back(work, i);
    for (auto& x : t) x.join();
  }
  printf("%ld %ld\n", destroyed.load(), key_sum.load());
  // A thread of NPTL never moves to another kernel thread. On several workers, fibers must have moved.
  if (getenv("FIBERTHREAD_STATS")) fprintf(stderr, "moves=%ld\n", moves.load());
}
