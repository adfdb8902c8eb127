// SPDX-License-Identifier: MIT
// A TCB and TLS for every fiber: its own, kept over moves, as new after recycling, in the loader's list.
#include "sched/glibc/tcb.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "sched/arch/arch.h"
#include "sched/glibc/cancellation.h"
#include "sched/worker.h"
#include "tests/test.h"

using namespace fiberthread;

namespace {

thread_local int initialised = 42;
thread_local int zero;
thread_local char large[3000];
struct Destroyed {
  std::atomic<int>* count = nullptr;
  ~Destroyed() {
    if (count) ++*count;
  }
};
thread_local Destroyed destroyed;
std::atomic<int> destroyed_count{0}, bad{0};

void check(bool ok) { bad += !ok; }

void* look_and_spoil(void*) {
  check(errno == 0);
  check(tls_current && !tls_current->run.kernel && tls_current->memory.tcb == reinterpret_cast<void*>(pthread_self()));
  void* tp = thread_pointer();
  int* where = &initialised;
  destroyed.count = &destroyed_count;
  initialised = 7;
  zero = 8;
  memset(large, 9, sizeof large);
  errno = 10;
  for (int i = 0; i < 5; i++) {
    sched_yield();
    check(errno == 10 && initialised == 7 && zero == 8 && large[0] == 9 && &initialised == where);
    check(thread_pointer() == tp);
  }
  return nullptr;
}

}  // namespace

// preloaded/tls.cpp tests from outside that a recycled fiber's TLS is as new. Here the test is in the library's own module, whose TLS the
// library leaves alone.
Test(tcb, each_fiber_has_its_own) {
  constexpr int kThreads = 50;
  pthread_t t[kThreads];
  for (auto& x : t) cr_assert_eq(pthread_create(&x, nullptr, look_and_spoil, nullptr), 0);
  for (auto& x : t) cr_assert_eq(pthread_join(x, nullptr), 0);
  cr_assert_eq(bad.load(), 0);
  cr_assert_eq(destroyed_count.load(), kThreads);
}

Test(tcb, main_keeps_its_own) {
  void* tp = thread_pointer();
  errno = 5;
  initialised = 6;
  pthread_t t[10];
  for (auto& x : t) pthread_create(&x, nullptr, look_and_spoil, nullptr);
  for (auto& x : t) pthread_join(x, nullptr);
  cr_assert(thread_pointer() == tp);
  cr_assert_eq(errno, 5);
  cr_assert_eq(initialised, 6);
  cr_assert(sched_started());
}

Test(tcb, key_destructors_run_again_while_they_set_values) {
  static pthread_key_t key;
  static std::atomic<int> runs{0};
  pthread_key_create(&key, [](void* p) {
    runs++;
    if (runs < 3) pthread_setspecific(key, p);
  });
  pthread_t t;
  int value;
  pthread_create(
      &t, nullptr,
      [](void* p) -> void* {
        pthread_setspecific(key, p);
        return p;
      },
      &value);
  pthread_join(t, nullptr);
  cr_assert_eq(runs.load(), 3);
}

namespace {

// Notes what a thread finds when it begins: its struct pthread, and libc's own static TLS.
struct Found {
  char *pd, *frame;
  size_t size, tls_size;
  uintptr_t word[16384 / sizeof(uintptr_t)], tls[16384 / sizeof(uintptr_t)];
};
Found by_libc, by_us;

uint32_t descriptor(const char* name, int element) {
  auto* p = static_cast<const uint32_t*>(dlvsym(RTLD_DEFAULT, name, "GLIBC_PRIVATE"));
  return p ? p[element] : 0;
}

void* find(void* p) {
  auto* f = static_cast<Found*>(p);
  f->pd = reinterpret_cast<char*>(pthread_self());
  f->frame = static_cast<char*>(__builtin_frame_address(0));
  f->size = descriptor("_thread_db_sizeof_pthread", 0);
  memcpy(f->word, f->pd, f->size);
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* p) {
        auto* f = static_cast<Found*>(p);
        auto* tls = static_cast<char*>(info->dlpi_tls_data);
        for (int i = 0; tls && i < info->dlpi_phnum; i++) {
          auto& h = info->dlpi_phdr[i];
          if (h.p_type != PT_TLS || reinterpret_cast<char*>(&errno) < tls || reinterpret_cast<char*>(&errno) >= tls + h.p_memsz) continue;
          f->tls_size = h.p_memsz;
          memcpy(f->tls, tls, h.p_memsz);
        }
        return 0;
      },
      f);
  return nullptr;
}

// Returns true if the words are equal, or both point to the same place in their thread's own struct pthread.
bool same(uintptr_t of_libc, uintptr_t ours) {
  auto into = [](uintptr_t v, Found& f) { return v - reinterpret_cast<uintptr_t>(f.pd); };
  return of_libc == ours || (into(of_libc, by_libc) == into(ours, by_us) && into(ours, by_us) <= by_us.size);
}

}  // namespace

// Compares, word by word, what libc's pthread_create gives to a thread on the program's own stack with what a fiber has. So the test
// notices any field that a release adds or uses in another way.
Test(tcb, is_as_libc_would_make_it) {
  constexpr size_t kStack = 0x57000;  // found nowhere by chance
  char* stack = static_cast<char*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  pthread_t t;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstack(&attr, stack, kStack);
  auto* create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  auto* join = reinterpret_cast<decltype(&pthread_join)>(dlsym(RTLD_NEXT, "pthread_join"));
  uint32_t tid = descriptor("_thread_db_pthread_tid", 2), list = descriptor("_thread_db_pthread_list", 2);
  uint32_t dtv = descriptor("_thread_db_pthread_dtvp", 2), cancelled = descriptor("_thread_db_pthread_cancelhandling", 2);
  for (const char* which : {"a new one", "a recycled one"}) {
    cr_assert_eq(pthread_create(&t, nullptr, find, &by_us), 0);
    cr_assert_eq(pthread_join(t, nullptr), 0);
    // All signals are blocked, because libc notes its creator's mask, and the library makes its threads with all signals blocked.
    uint64_t mask;
    sched_block_signals(&mask);
    int error = create(&t, &attr, find, &by_libc);
    sched_restore_signals(mask);
    cr_assert_eq(error, 0);
    cr_assert_eq(join(t, nullptr), 0);
    cr_assert(by_libc.size == by_us.size && by_libc.size > 1000 && by_libc.tls_size == by_us.tls_size && by_libc.tls_size > 0);
    for (size_t o = 0; o < by_libc.size; o += sizeof(uintptr_t)) {
      uintptr_t a = by_libc.word[o / sizeof a], b = by_us.word[o / sizeof b];
      if (same(a, b)) continue;
      // These words name the thread and its stack.
      if (o == tid / 8 * 8 || o == list || o == list + 8 || o == dtv) continue;
      if (a == reinterpret_cast<uintptr_t>(find) || a == reinterpret_cast<uintptr_t>(&by_libc)) continue;
      if (a == reinterpret_cast<uintptr_t>(stack) || a == kStack) continue;
      if (a - reinterpret_cast<uintptr_t>(by_libc.frame) < 4096 && b - reinterpret_cast<uintptr_t>(by_us.frame) < 4096) continue;
      // The attributes are next to the word of the cancellation. libc's threads inherit from a fiber that they have no rseq area.
      if (o == cancelled / 8 * 8 && ((a ^ b) >> cancelled % 8 * 8 & 0xffffffff) == 0) continue;
      cr_assert(false, "%s at %zu: %lx, libc's thread has %lx", which, o, b, a);
    }
    if (which[2] == 'r') break;  // a recycled fiber keeps malloc's cache
    for (size_t o = 0; o < by_libc.tls_size; o += sizeof(uintptr_t))
      cr_assert(same(by_libc.tls[o / sizeof(uintptr_t)], by_us.tls[o / sizeof(uintptr_t)]), "TLS of libc at %zu", o);
  }
}

// A request to end may be noted when the thread has ended, but is not joined yet. The next thread in its block is not meant.
Test(tcb, a_late_request_is_for_nobody_else) {
  auto may_end = [](void*) -> void* {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
    pthread_testcancel();
    return reinterpret_cast<void*>(1);
  };
  bool same_block = false;
  for (int i = 0; i < 100; i++) {
    pthread_t first, second;
    void* result;
    cr_assert_eq(pthread_create(&first, nullptr, may_end, nullptr), 0);
    void* tcb = reinterpret_cast<void*>(first);
    while (!tcb_fiber(tcb)->join.done.load()) sched_yield();
    __atomic_fetch_or(tcb_cancelhandling(tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
    interrupt(tcb_fiber(tcb), kInterruptUnwind);  // as pthread_cancel() does
    cr_assert_eq(pthread_join(first, nullptr), 0);
    cr_assert_eq(pthread_create(&second, nullptr, may_end, nullptr), 0);
    cr_assert_eq(pthread_join(second, &result), 0);
    cr_assert_eq(result, reinterpret_cast<void*>(1));
    same_block |= second == first;
  }
  cr_assert(same_block);
}

// Which bit libc sets for a type and a state is found by an experiment in the caller's TCB. Another thread requests its cancellation meanwhile.
Test(tcb, bits_of_cancellation_are_found_beside_other_changes) {
  static auto request_once = [] {
    uint32_t* word = tcb_cancelhandling(self()->memory.tcb);
    __atomic_fetch_xor(word, kLibcCanceled, __ATOMIC_SEQ_CST);
  };
  static int type_calls, state_calls;
  LibcCancelCalls calls{};
  calls.set_state = [](int state, int* old) {
    if (state_calls++ == 0) request_once();
    return pthread_setcancelstate(state, old);
  };
  calls.set_type = [](int type, int* old) {
    if (type_calls++ == 0) request_once();
    return pthread_setcanceltype(type, old);
  };
  auto experiment = [](void* p) -> void* {
    libc_cancel_asynchronous.offset = libc_cancel_disabled.offset = -1;
    libc_find_cancel_bits(*static_cast<LibcCancelCalls*>(p));
    return nullptr;
  };
  pthread_t t;
  cr_assert_eq(pthread_create(&t, nullptr, experiment, &calls), 0);
  cr_assert_eq(pthread_join(t, nullptr), 0);
  for (LibcCancelBit* bit : {&libc_cancel_asynchronous, &libc_cancel_disabled}) {
    cr_assert(bit->offset.load() >= 0);
    cr_assert_eq(__builtin_popcount(bit->bits.load()), 1);
  }
  auto types = [](void*) -> void* {
    void* tcb = self()->memory.tcb;
    __atomic_fetch_or(tcb_cancelhandling(tcb), kLibcCanceled, __ATOMIC_SEQ_CST);
    check(!libc_cancel_asynchronous.is_set(tcb) && !libc_cancel_disabled.is_set(tcb));
    __atomic_fetch_and(tcb_cancelhandling(tcb), ~kLibcCanceled, __ATOMIC_SEQ_CST);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
    check(libc_cancel_asynchronous.is_set(tcb) && !libc_cancel_disabled.is_set(tcb));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
    check(!libc_cancel_asynchronous.is_set(tcb) && libc_cancel_disabled.is_set(tcb));
    return nullptr;
  };
  bad = 0;
  cr_assert_eq(pthread_create(&t, nullptr, types, nullptr), 0);
  cr_assert_eq(pthread_join(t, nullptr), 0);
  cr_assert_eq(bad, 0);
}

// Workers' TCBs are made without the loader. libc's variables are there as in any thread, such as the locale and malloc's cache.
Test(tcb, a_workers_has_libcs_variables) {
  pthread_t t;
  cr_assert_eq(pthread_create(&t, nullptr, look_and_spoil, nullptr), 0);
  cr_assert_eq(pthread_join(t, nullptr), 0);
  bool looked = false;
  auto look = [](dl_phdr_info* info, size_t, void* p) {
    auto* tls = static_cast<char*>(info->dlpi_tls_data);
    for (int i = 0; tls && i < info->dlpi_phnum; i++) {
      auto& h = info->dlpi_phdr[i];
      if (h.p_type != PT_TLS || reinterpret_cast<char*>(&errno) < tls || reinterpret_cast<char*>(&errno) >= tls + h.p_memsz) continue;
      auto* image = reinterpret_cast<char*>(info->dlpi_addr + h.p_vaddr);
      size_t own = 0;  // words with the thread's own values, such as the pointer to its resolver's state
      for (Worker* w = all_workers(); w; w = w->thread.all_next)
        for (size_t o = 0; w->context.tp && o + sizeof(void*) <= h.p_filesz; o += sizeof(void*))
          own += memcmp(static_cast<char*>(w->context.tp) + (tls - static_cast<char*>(thread_pointer())) + o, image + o, sizeof(void*)) !=
                 0;
      cr_assert(own <= workers_made(), "%zu words are not as in the image", own);
      *static_cast<bool*>(p) = true;
    }
    return 0;
  };
  dl_iterate_phdr(look, &looked);
  cr_assert(looked);
}
