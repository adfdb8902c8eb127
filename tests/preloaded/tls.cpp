// SPDX-License-Identifier: MIT
// Thread-local variables of a recycled thread are as new, and destructors run. errno, h_errno, dlerror() and locale are reset. Each
// thread's stack is where pthread_getattr_np says.
#include <dlfcn.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

static __thread int initialised = 42;
static __thread int zero;
static __thread char large[3000];
static std::atomic<int> destroyed{0};
struct Object {
  std::string text = "new";
  ~Object() { destroyed++; }
};
static thread_local Object object;

static void* look_and_spoil(void*) {
  assert(initialised == 42 && zero == 0 && large[2999] == 0 && errno == 0 && object.text == "new");
  assert(uselocale(nullptr) == LC_GLOBAL_LOCALE && h_errno == 0 && dlerror() == nullptr);
  pthread_attr_t a;
  void* low;
  size_t size;
  assert(pthread_getattr_np(pthread_self(), &a) == 0 && pthread_attr_getstack(&a, &low, &size) == 0);
  pthread_attr_destroy(&a);
  char here;
  assert(&here > static_cast<char*>(low) && &here < static_cast<char*>(low) + size);
  initialised = 7;
  zero = 8;
  object.text = "old";
  memset(large, 9, sizeof large);
  locale_t c = newlocale(LC_ALL_MASK, "C", nullptr);
  uselocale(c);
  for (int i = 0; i < 5; i++) {
    errno = 10 + i;
    sched_yield();
    assert(errno == 10 + i && initialised == 7 && zero == 8 && large[0] == 9 && object.text == "old");
  }
  uselocale(LC_GLOBAL_LOCALE);
  freelocale(c);
  h_errno = TRY_AGAIN;
  dlopen("there is no such library", RTLD_NOW);
  return nullptr;
}

int main() {
  enum { kThreads = 50, kRounds = 20 };
  for (int round = 0; round < kRounds; round++) {
    pthread_t t[kThreads];
    for (auto& x : t) assert(pthread_create(&x, nullptr, look_and_spoil, nullptr) == 0);
    for (auto& x : t) assert(pthread_join(x, nullptr) == 0);
  }
  assert(initialised == 42 && zero == 0);
  printf("%d\n", destroyed.load());
}
