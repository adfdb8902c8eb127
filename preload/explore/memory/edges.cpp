// SPDX-License-Identifier: MIT
// What orders threads: these functions stand between the stubs of libfiberthread-explore.so, which come first, and libfiberthread.so. Each
// calls the next function of its name, and notes what happens before what. Where it is open whether something is ordered, it is noted as ordered.
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "preload/explore/memory/modules.h"
#include "preload/explore/memory/order.h"
#include "preload/explore/memory/races.h"

using namespace fiberthread;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace {

enum class How { Lock, Guard, Release, ReadLock, WriteLock, RwUnlock, Wait, Barrier, Create, Join, Signal, Out, In };

// All six arguments that a function may have in registers. None of these functions has more, or a floating-point one.
using Function = long (*)(long, long, long, long, long, long);

// Stands for all descriptors: what one thread writes may be what another one reads.
char descriptors;
uintptr_t io() { return reinterpret_cast<uintptr_t>(&descriptors); }

template <How kHow>
long call(Function next, long a, long b, long c, long d, long e, long f) {
  if (!memory_explored() && kHow != How::Create) return next(a, b, c, d, e, f);
  auto object = static_cast<uintptr_t>(a), mutex = static_cast<uintptr_t>(b);
  uintptr_t before = 0;
  void* joined = nullptr;
  if (kHow == How::Release || kHow == How::Barrier) order_release(object);
  if (kHow == How::RwUnlock) order_rw_unlock(object);
  if (kHow == How::Out) order_release(io());
  if (kHow == How::Signal) order_signal();
  if (kHow == How::Join) joined = order_join(object);
  if (kHow == How::Wait) {
    order_release(mutex);
    before = order_wait_begin(mutex);
  }
  long result = next(a, b, c, d, e, f);
  int error = errno, status = static_cast<int>(result);
  bool locked = status == 0 || status == EOWNERDEAD;
  if ((kHow == How::Lock && locked) || kHow == How::Barrier || kHow == How::Guard) order_acquire(object);
  if (kHow == How::ReadLock && locked) order_read_lock(object);
  if (kHow == How::WriteLock && locked) order_write_lock(object);
  if (kHow == How::In) order_acquire(io());
  if (kHow == How::Join && status == 0) order_joined(joined);
  if (kHow == How::Create && status == 0) order_created(*reinterpret_cast<pthread_t*>(a));
  if (kHow == How::Wait) {
    order_wait_end(before);
    order_acquire(mutex);
    order_acquire(object);
  }
  errno = error;
  return result;
}

template <class F>
F next_of(F& slot, const char* name) {
  F next = __atomic_load_n(&slot, __ATOMIC_RELAXED);
  if (!next) {
    next = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
    __atomic_store_n(&slot, next, __ATOMIC_RELAXED);
  }
  return next;
}

}  // namespace

#define EDGE(name, how) \
  EXPORT long edge_##name(long a, long b, long c, long d, long e, long f) asm(#name); \
  EXPORT long edge_##name(long a, long b, long c, long d, long e, long f) { \
    static Function next; \
    return call<How::how>(next_of(next, #name), a, b, c, d, e, f); \
  }
#include "preload/explore/memory/edges.def"

void fiberthread::memory_yields() {
  static int (*next)();
  next_of(next, "sched_yield")();
}

// ---- once: what the function has done is before the end of all calls ----

namespace {
struct Once {
  void (*function)();
  uintptr_t object;
};
thread_local Once once;

void run_once() {
  Once mine = once;
  mine.function();
  order_release(mine.object);
}

template <class F>
auto call_once_by(F next, void* object, void (*function)()) {
  Once before = once;
  once = {function, reinterpret_cast<uintptr_t>(object)};
  auto end = [&] {
    once = before;
    order_acquire(reinterpret_cast<uintptr_t>(object));
  };
  if constexpr (__is_same(F, void (*)(void*, void (*)()))) {
    next(object, run_once);
    end();
  } else {
    int result = next(object, run_once);
    end();
    return result;
  }
}
}  // namespace

EXPORT int edge_pthread_once(void* object, void (*function)()) asm("pthread_once");
EXPORT int edge_pthread_once(void* object, void (*function)()) {
  static int (*next)(void*, void (*)());
  next_of(next, "pthread_once");
  return memory_explored() ? call_once_by(next, object, function) : next(object, function);
}
EXPORT void edge_call_once(void* object, void (*function)()) asm("call_once");
EXPORT void edge_call_once(void* object, void (*function)()) {
  static void (*next)(void*, void (*)());
  next_of(next, "call_once");
  if (memory_explored()) call_once_by(next, object, function);
  else next(object, function);
}

// ---- memory that is given back, and may be another thread's next ----

namespace {
void (*next_free)(void*);
void* (*next_realloc)(void*, size_t);
int (*next_munmap)(void*, size_t);

void freed(void* p, uintptr_t pc) {
  if (p && memory_explored()) memory_freed(reinterpret_cast<uintptr_t>(p), malloc_usable_size(p), is_instrumented(pc) ? pc : 0);
}
}  // namespace

EXPORT void free(void* p) noexcept {
  freed(p, CALLER);
  next_of(next_free, "free")(p);
}
EXPORT void* realloc(void* p, size_t n) noexcept {
  freed(p, 0);
  return next_of(next_realloc, "realloc")(p, n);
}
EXPORT int munmap(void* p, size_t n) noexcept {
  memory_freed(reinterpret_cast<uintptr_t>(p), n, 0);
  return next_of(next_munmap, "munmap")(p, n);
}
// The program's call has the place that counts. C++'s operators then call free() for it.
#define DELETE(name) \
  EXPORT void edge_##name(void* p, size_t size, size_t align) asm(#name); \
  EXPORT void edge_##name(void* p, size_t size, size_t align) { \
    static void (*next)(void*, size_t, size_t); \
    freed(p, CALLER); \
    next_of(next, #name)(p, size, align); \
  }
DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)

// ---- GCC leaves these calls as they are ----

namespace {
void* (*next_memcpy)(void*, const void*, size_t);
void* (*next_memmove)(void*, const void*, size_t);
void* (*next_memset)(void*, int, size_t);

// dlerror() calls some of these, and looking them up only then would change the message that it is about to return.
[[gnu::constructor]] void start() {
  next_of(next_free, "free");
  next_of(next_realloc, "realloc");
  next_of(next_munmap, "munmap");
  next_of(next_memcpy, "memcpy");
  next_of(next_memmove, "memmove");
  next_of(next_memset, "memset");
}

// Before that. The barriers keep the compiler from making calls of these functions of it.
void* copy(void* to, const void* from, size_t n) {
  auto* t = static_cast<char*>(to);
  auto* f = static_cast<const char*>(from);
  bool up = t < f;
  for (size_t i = 0; i < n; i++) {
    size_t k = up ? i : n - 1 - i;
    t[k] = f[k];
    asm volatile("" ::: "memory");
  }
  return to;
}

bool seen(uintptr_t pc) { return memory_explored() && is_instrumented(pc); }
}  // namespace

EXPORT void* memcpy(void* to, const void* from, size_t n) noexcept {
  if (!next_memcpy) return copy(to, from, n);
  if (seen(CALLER)) {
    memory_access(reinterpret_cast<uintptr_t>(from), n, kRead, CALLER);
    memory_access(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  }
  return next_memcpy(to, from, n);
}
EXPORT void* memmove(void* to, const void* from, size_t n) noexcept {
  if (!next_memmove) return copy(to, from, n);
  if (seen(CALLER)) {
    memory_access(reinterpret_cast<uintptr_t>(from), n, kRead, CALLER);
    memory_access(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  }
  return next_memmove(to, from, n);
}
EXPORT void* memset(void* to, int c, size_t n) noexcept {
  if (!next_memset) {
    for (size_t i = 0; i < n; i++) {
      static_cast<char*>(to)[i] = static_cast<char>(c);
      asm volatile("" ::: "memory");
    }
    return to;
  }
  if (seen(CALLER)) memory_access(reinterpret_cast<uintptr_t>(to), n, kWrite, CALLER);
  return next_memset(to, c, n);
}
