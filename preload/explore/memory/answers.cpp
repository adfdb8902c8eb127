// SPDX-License-Identifier: MIT
// The functions that code built with -fsanitize=thread calls, as GCC 12 and Clang 14 and later emit these calls. libtsan and Clang's run-time
// have them too, with the same arguments. Here they make scheduling points of the accesses, and look for races.
#include <stddef.h>
#include <stdint.h>

#include "preload/explore/memory/modules.h"
#include "preload/explore/memory/order.h"
#include "preload/explore/memory/races.h"

using namespace fiberthread;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define CALLER reinterpret_cast<uintptr_t>(__builtin_return_address(0))

namespace {
uintptr_t at(const volatile void* p) { return reinterpret_cast<uintptr_t>(p); }

using Wide = unsigned __int128;

// The compilers' own operations of this size are calls of libatomic.
bool swap_wide(volatile Wide* a, Wide& expected, Wide wanted) {
#ifdef __x86_64__
  bool same;
  auto low = static_cast<uint64_t>(expected), high = static_cast<uint64_t>(expected >> 64);
  asm volatile("lock cmpxchg16b %1"
               : "=@ccz"(same), "+m"(*a), "+a"(low), "+d"(high)
               : "b"(static_cast<uint64_t>(wanted)), "c"(static_cast<uint64_t>(wanted >> 64))
               : "memory");
  expected = static_cast<Wide>(high) << 64 | low;
  return same;
#else
  uint64_t low, high;
  uint32_t refused;
  auto expected_low = static_cast<uint64_t>(expected), expected_high = static_cast<uint64_t>(expected >> 64);
  auto wanted_low = static_cast<uint64_t>(wanted), wanted_high = static_cast<uint64_t>(wanted >> 64);
  bool same;
  do {
    asm volatile("ldaxp %0, %1, %2" : "=&r"(low), "=&r"(high) : "Q"(*a) : "memory");
    same = low == expected_low && high == expected_high;
    // What was read is whole only if it can be written back.
    asm volatile("stlxp %w0, %2, %3, %1"
                 : "=&r"(refused), "=Q"(*a)
                 : "r"(same ? wanted_low : low), "r"(same ? wanted_high : high)
                 : "memory");
  } while (refused);
  expected = static_cast<Wide>(high) << 64 | low;
  return same;
#endif
}

// The operations on memory. All are sequentially consistent, whatever their orders are.
template <class T>
bool swap(volatile T* a, T& expected, T wanted) {
  if constexpr (sizeof(T) == 16) return swap_wide(a, expected, wanted);
  else return __atomic_compare_exchange_n(a, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
template <class T, class F>
T change(volatile T* a, F f) {
  T old = 0;
  while (!swap(a, old, f(old))) {
  }
  return old;
}

template <class T>
T load(const volatile T* a, int order, uintptr_t pc) {
  memory_access(at(a), sizeof(T), kAtomic, pc);
  T v;
  if constexpr (sizeof(T) == 16) v = change(const_cast<volatile T*>(a), [](T old) { return old; });
  else v = __atomic_load_n(a, __ATOMIC_SEQ_CST);
  order_atomic(at(a), order, true, false);
  return v;
}
template <class T, class F>
T update(volatile T* a, int order, uintptr_t pc, bool reads, F f) {
  memory_access(at(a), sizeof(T), kAtomic | kWrite, pc);
  order_atomic(at(a), order, reads, true);
  return change(a, f);
}
template <class T>
bool compare(volatile T* a, T& expected, T wanted, int order, int failed, uintptr_t pc) {
  memory_access(at(a), sizeof(T), kAtomic | kWrite, pc);
  bool same = swap(a, expected, wanted);
  order_atomic(at(a), same ? order : failed, true, same);
  return same;
}
}  // namespace

// Tells libfiberthread.so that ThreadSanitizer itself is not there.
EXPORT void fiberthread_explore_answers() {}

EXPORT void __tsan_init() { module_instrumented(CALLER); }
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}

// ---- plain accesses ----

#define PLAIN(name, size, kind) \
  EXPORT void __tsan_##name##size(void* a) { memory_access(at(a), size, kind, CALLER); }
#define PLAIN_AT(name, size, kind) \
  EXPORT void __tsan_##name##size##_pc(void* a, void* pc) { memory_access(at(a), size, kind, at(pc)); }
// Volatile variables are told apart only if the compiler was asked to. Then they are meant for other threads.
#define OF_SIZE(size) \
  PLAIN(read, size, kRead) \
  PLAIN(write, size, kWrite) \
  PLAIN(read_write, size, kWrite) \
  PLAIN(volatile_read, size, kAtomic) \
  PLAIN(volatile_write, size, kAtomic | kWrite) \
  PLAIN(unaligned_read, size, kRead) \
  PLAIN(unaligned_write, size, kWrite) \
  PLAIN(unaligned_read_write, size, kWrite) \
  PLAIN(unaligned_volatile_read, size, kAtomic) \
  PLAIN(unaligned_volatile_write, size, kAtomic | kWrite) \
  PLAIN_AT(read, size, kRead) \
  PLAIN_AT(write, size, kWrite)
OF_SIZE(1)
OF_SIZE(2)
OF_SIZE(4)
OF_SIZE(8)
OF_SIZE(16)

EXPORT void __tsan_vptr_read(void** a) { memory_access(at(a), sizeof *a, kRead, CALLER); }
// A destructor stores what is there already if the class has no base.
EXPORT void __tsan_vptr_update(void** a, void* value) {
  if (*a != value) memory_access(at(a), sizeof *a, kWrite, CALLER);
}
EXPORT void __tsan_read_range(void* a, size_t n) { memory_access(at(a), n, kRead, CALLER); }
EXPORT void __tsan_write_range(void* a, size_t n) { memory_access(at(a), n, kWrite, CALLER); }
EXPORT void __tsan_read_range_pc(void* a, size_t n, void* pc) { memory_access(at(a), n, kRead, at(pc)); }
EXPORT void __tsan_write_range_pc(void* a, size_t n, void* pc) { memory_access(at(a), n, kWrite, at(pc)); }

EXPORT void* __tsan_memcpy(void* to, const void* from, size_t n) {
  memory_access(at(from), n, kRead, CALLER);
  memory_access(at(to), n, kWrite, CALLER);
  return __builtin_memcpy(to, from, n);
}
EXPORT void* __tsan_memmove(void* to, const void* from, size_t n) {
  memory_access(at(from), n, kRead, CALLER);
  memory_access(at(to), n, kWrite, CALLER);
  return __builtin_memmove(to, from, n);
}
EXPORT void* __tsan_memset(void* to, int c, size_t n) {
  memory_access(at(to), n, kWrite, CALLER);
  return __builtin_memset(to, c, n);
}

// ---- atomics ----

#define FETCH(bits, type, name, expression) \
  EXPORT type __tsan_atomic##bits##_fetch_##name(volatile type* a, type v, int order) { \
    return update(a, order, CALLER, true, [=](type old) { return static_cast<type>(expression); }); \
  }
#define ATOMIC(bits, type) \
  EXPORT type __tsan_atomic##bits##_load(const volatile type* a, int order) { return load(a, order, CALLER); } \
  EXPORT void __tsan_atomic##bits##_store(volatile type* a, type v, int order) { \
    update(a, order, CALLER, false, [=](type) { return v; }); \
  } \
  EXPORT type __tsan_atomic##bits##_exchange(volatile type* a, type v, int order) { \
    return update(a, order, CALLER, true, [=](type) { return v; }); \
  } \
  FETCH(bits, type, add, old + v) \
  FETCH(bits, type, sub, old - v) \
  FETCH(bits, type, and, old& v) \
  FETCH(bits, type, or, old | v) \
  FETCH(bits, type, xor, old ^ v) \
  FETCH(bits, type, nand, ~(old & v)) \
  EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile type* a, type* e, type v, int order, int failed) { \
    return compare(a, *e, v, order, failed, CALLER); \
  } \
  EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile type* a, type* e, type v, int order, int failed) { \
    return compare(a, *e, v, order, failed, CALLER); \
  } \
  EXPORT type __tsan_atomic##bits##_compare_exchange_val(volatile type* a, type e, type v, int order, int failed) { \
    compare(a, e, v, order, failed, CALLER); \
    return e; \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
ATOMIC(128, Wide)

EXPORT void __tsan_atomic_thread_fence(int order) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  order_fence(order);
}
EXPORT void __tsan_atomic_signal_fence(int) {}

// ---- what programs call themselves ----

// A program that was linked with libtsan has this function from there, and not from the part of libc that is linked statically.
extern "C" int __cxa_atexit(void (*)(void*), void*, void*) noexcept;
EXPORT int atexit(void (*f)()) noexcept { return __cxa_atexit(reinterpret_cast<void (*)(void*)>(f), nullptr, nullptr); }

EXPORT void __tsan_acquire(void* a) { order_acquire(at(a)); }
EXPORT void __tsan_release(void* a) { order_release(at(a)); }

// <sanitizer/tsan_interface.h>
constexpr unsigned kReadLock = 1 << 3, kTryLockFailed = 1 << 5;
EXPORT void __tsan_mutex_create(void*, unsigned) {}
EXPORT void __tsan_mutex_destroy(void*, unsigned) {}
EXPORT void __tsan_mutex_pre_lock(void*, unsigned) {}
EXPORT void __tsan_mutex_post_lock(void* a, unsigned flags, int) {
  if (flags & kTryLockFailed) return;
  if (flags & kReadLock) order_read_lock(at(a));
  else order_write_lock(at(a));
}
EXPORT int __tsan_mutex_pre_unlock(void* a, unsigned) {
  order_rw_unlock(at(a));
  return 0;
}
EXPORT void __tsan_mutex_post_unlock(void*, unsigned) {}
EXPORT void __tsan_mutex_pre_signal(void* a, unsigned) { order_release(at(a)); }
EXPORT void __tsan_mutex_post_signal(void*, unsigned) {}
EXPORT void __tsan_mutex_pre_divert(void*, unsigned) {}
EXPORT void __tsan_mutex_post_divert(void*, unsigned) {}

EXPORT void __tsan_ignore_thread_begin() { memory_ignore(1); }
EXPORT void __tsan_ignore_thread_end() { memory_ignore(-1); }

// A program with coroutines tells them apart by these. Here they are one thread.
EXPORT void* __tsan_get_current_fiber() { return nullptr; }
EXPORT void* __tsan_create_fiber(unsigned) { return nullptr; }
EXPORT void __tsan_destroy_fiber(void*) {}
EXPORT void __tsan_switch_to_fiber(void*, unsigned) {}
EXPORT void __tsan_set_fiber_name(void*, const char*) {}

EXPORT void* __tsan_external_register_tag(const char*) { return nullptr; }
EXPORT void __tsan_external_register_header(void*, const char*) {}
EXPORT void __tsan_external_assign_tag(void*, void*) {}
EXPORT void __tsan_external_read(void* a, void* pc, void*) { memory_access(at(a), 1, kRead, at(pc)); }
EXPORT void __tsan_external_write(void* a, void* pc, void*) { memory_access(at(a), 1, kWrite, at(pc)); }
EXPORT void __tsan_flush_memory() {}

// <sanitizer/common_interface_defs.h>
#define UNALIGNED(bits) \
  EXPORT uint##bits##_t __sanitizer_unaligned_load##bits(const void* a) { \
    memory_access(at(a), bits / 8, kRead, CALLER); \
    uint##bits##_t v; \
    __builtin_memcpy(&v, a, sizeof v); \
    return v; \
  } \
  EXPORT void __sanitizer_unaligned_store##bits(void* a, uint##bits##_t v) { \
    memory_access(at(a), bits / 8, kWrite, CALLER); \
    __builtin_memcpy(a, &v, sizeof v); \
  }
UNALIGNED(16)
UNALIGNED(32)
UNALIGNED(64)
EXPORT void __sanitizer_print_stack_trace() {}
EXPORT void __sanitizer_set_report_path(const char*) {}
EXPORT void __sanitizer_set_report_fd(void*) {}
EXPORT void __sanitizer_set_death_callback(void (*)()) {}

EXPORT void AnnotateHappensBefore(const char*, int, uintptr_t a) { order_release(a); }
EXPORT void AnnotateHappensAfter(const char*, int, uintptr_t a) { order_acquire(a); }
EXPORT void AnnotateRWLockCreate(const char*, int, uintptr_t) {}
EXPORT void AnnotateRWLockCreateStatic(const char*, int, uintptr_t) {}
EXPORT void AnnotateRWLockDestroy(const char*, int, uintptr_t) {}
EXPORT void AnnotateRWLockAcquired(const char*, int, uintptr_t a, uintptr_t writes) {
  if (writes) order_write_lock(a);
  else order_read_lock(a);
}
EXPORT void AnnotateRWLockReleased(const char*, int, uintptr_t a, uintptr_t) { order_rw_unlock(a); }
EXPORT void AnnotateCondVarSignal(const char*, int, uintptr_t a) { order_release(a); }
EXPORT void AnnotateCondVarSignalAll(const char*, int, uintptr_t a) { order_release(a); }
EXPORT void AnnotateCondVarWait(const char*, int, uintptr_t a, uintptr_t) { order_acquire(a); }
EXPORT void AnnotatePCQPut(const char*, int, uintptr_t a) { order_release(a); }
EXPORT void AnnotatePCQGet(const char*, int, uintptr_t a) { order_acquire(a); }
EXPORT void AnnotatePCQCreate(const char*, int, uintptr_t) {}
EXPORT void AnnotatePCQDestroy(const char*, int, uintptr_t) {}
EXPORT void AnnotateBenignRace(const char*, int, uintptr_t a, const char*) { memory_benign(a, 8); }
EXPORT void AnnotateBenignRaceSized(const char*, int, uintptr_t a, size_t n, const char*) { memory_benign(a, n); }
EXPORT void AnnotateNewMemory(const char*, int, uintptr_t a, size_t n) { memory_freed(a, n, 0); }
EXPORT void AnnotatePublishMemoryRange(const char*, int, uintptr_t, uintptr_t) {}
EXPORT void AnnotateUnpublishMemoryRange(const char*, int, uintptr_t, uintptr_t) {}
EXPORT void AnnotateIgnoreReadsBegin(const char*, int) { memory_ignore(1); }
EXPORT void AnnotateIgnoreReadsEnd(const char*, int) { memory_ignore(-1); }
EXPORT void AnnotateIgnoreWritesBegin(const char*, int) { memory_ignore(1); }
EXPORT void AnnotateIgnoreWritesEnd(const char*, int) { memory_ignore(-1); }
EXPORT void AnnotateIgnoreSyncBegin(const char*, int) {}
EXPORT void AnnotateIgnoreSyncEnd(const char*, int) {}
EXPORT void AnnotateEnableRaceDetection(const char*, int, int) {}
EXPORT void AnnotateExpectRace(const char*, int, uintptr_t a, const char*) { memory_benign(a, 8); }
EXPORT void AnnotateFlushExpectedRaces(const char*, int) {}
EXPORT void AnnotateFlushState(const char*, int) {}
EXPORT void AnnotateThreadName(const char*, int, const char*) {}
EXPORT void AnnotateTraceMemory(const char*, int, uintptr_t) {}
EXPORT void AnnotateMutexIsNotPHB(const char*, int, uintptr_t) {}
EXPORT void AnnotateMutexIsUsedAsCondVar(const char*, int, uintptr_t) {}
EXPORT void AnnotateMemoryIsInitialized(const char*, int, uintptr_t, uintptr_t) {}
EXPORT void AnnotateMemoryIsUninitialized(const char*, int, uintptr_t, uintptr_t) {}
EXPORT void AnnotateNoOp(const char*, int, uintptr_t) {}
EXPORT int RunningOnValgrind() { return 0; }
EXPORT double ValgrindSlowdown() { return 10; }
