// SPDX-License-Identifier: MIT
// The library that `fiberthread explore` preloads before libfiberthread.so. It brings each call of points.def to the scheduler before it is
// made, and gives the program the same times and random numbers in each run. libfiberthread.so itself has nothing of this in its way.
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>

#include "preload/explore/server.h"
#include "sched/syscall.h"

// Another library than libfiberthread.so may be preloaded with this one, and then nothing is explored.
extern "C" __attribute__((weak)) bool fiberthread_explore_point(const char* name, uintptr_t object, uintptr_t pc, int how);

extern "C" int __cxa_atexit(void (*)(void*), void*, void*);  // atexit(), for a library without a compiler's start files

namespace {

// As the stubs lay it out.
struct Slot {
  void* next;
  const char* name;
  uint64_t gives_way;
  uint64_t after;  // how fiberthread_explore_point() is called after the call; 0: not at all
};

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
uint64_t drawn = 0;
uint64_t draw() {
  uint64_t x = __atomic_add_fetch(&drawn, 0x9E3779B97F4A7C15u, __ATOMIC_RELAXED);
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

void fill(void* to, size_t n) {
  for (size_t i = 0; i < n; i++) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(draw() >> 32);
}

bool served = false;  // read and written by the only thread until it is true

[[gnu::constructor]] void start() {
  if (auto* random = reinterpret_cast<char*>(getauxval(AT_RANDOM))) fill(random, 16);
}

}  // namespace

extern "C" __attribute__((visibility("hidden"), used)) void* fiberthread_explore_enter(Slot* s, uintptr_t object, uintptr_t pc) {
  int error = errno;
  if (!served) note_before_first_thread(s->name, object);
  if (!served && (!strcmp(s->name, "pthread_create") || !strcmp(s->name, "thrd_create"))) {
    served = true;
    serve_before_first_thread();
    // A return from main is no call of exit(). Threads that run come before the end as a rule.
    auto at_exit = [](void*) {
      if (fiberthread_explore_point) fiberthread_explore_point("exit", 0, 0, 1);
    };
    __cxa_atexit(at_exit, nullptr, nullptr);
  }
  void* next = __atomic_load_n(&s->next, __ATOMIC_RELAXED);
  if (!next) {
    next = dlsym(RTLD_NEXT, s->name);
    __atomic_store_n(&s->next, next, __ATOMIC_RELAXED);
  }
  if (fiberthread_explore_point) fiberthread_explore_point(s->name, object, pc, static_cast<int>(s->gives_way));
  errno = error;
  return next;
}

// After the call. Returns true if the caller must begin to step.
extern "C" __attribute__((visibility("hidden"), used)) bool fiberthread_explore_leave(Slot* s, uintptr_t object, uintptr_t pc) {
  int error = errno;
  bool steps = fiberthread_explore_point && fiberthread_explore_point(s->name, object, pc, static_cast<int>(s->after));
  errno = error;
  return steps;
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int gettimeofday(struct timeval* t, void*) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *t = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}
EXPORT pid_t getpid() noexcept {
  if (!served) note_id_before_first_thread();
  return static_cast<pid_t>(fiberthread::raw_syscall(SYS_getpid));
}
EXPORT time_t time(time_t* t) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
EXPORT int timespec_get(timespec* t, int base) noexcept { return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, t) == 0 ? base : 0; }

EXPORT ssize_t getrandom(void* to, size_t n, unsigned) {
  fill(to, n);
  return static_cast<ssize_t>(n);
}
EXPORT int getentropy(void* to, size_t n) {
  if (n > 256) {
    errno = EIO;
    return -1;
  }
  fill(to, n);
  return 0;
}
EXPORT uint32_t arc4random() noexcept { return static_cast<uint32_t>(draw()); }
EXPORT void arc4random_buf(void* to, size_t n) noexcept { fill(to, n); }
EXPORT uint32_t arc4random_uniform(uint32_t limit) noexcept { return limit ? static_cast<uint32_t>(draw() % limit) : 0; }
