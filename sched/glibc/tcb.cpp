// SPDX-License-Identifier: MIT
#include "sched/glibc/tcb.h"

#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>

#include "sched/arch/arch.h"
#include "sched/glibc/loader_lock.h"
#include "sched/glibc/model.h"
#include "sched/glibc/modules.h"
#include "sched/glibc/processor.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/thread_list.h"
#include "sched/large.h"
#include "sched/life/fork.h"
#include "sched/worker.h"

namespace fiberthread {
namespace glibc {
namespace {

// libc's own static TLS, as it looks in a thread that has done nothing yet.
FIBERTHREAD_LARGE unsigned char pristine[4096];
std::atomic<bool> pristine_known{false};

// Offsets of the words that tcb_learn() has found, 4 bytes each.
constexpr uint32_t kMostLearned = 16;
uint32_t learned[kMostLearned];
std::atomic<uint32_t> learned_count{0};
SpinLock learn_lock;

// Makes struct pthread from the template.
void fill(char* pd) {
  memcpy(pd, template_image, layout.sizeof_pthread);
  for (unsigned i = 0; i < self_pointer_count; i++) at<uintptr_t>(pd, self_pointers[i]) += reinterpret_cast<uintptr_t>(pd);
  memset(pd + layout.res, 0, kResBytes);
  at<char*>(pd, layout.list + layout.list_next) = at<char*>(pd, layout.list + layout.list_prev) = pd + layout.list;
  at<void*>(pd, layout.dtv) = nullptr;
  at<uint32_t>(pd, layout.cancelhandling) = 0;
}

// Writes into initialised TLS what libc's start of a thread writes there.
void fill_tls(char* pd) {
  char* tp = thread_pointer_of(pd);
  at<char*>(tp, layout.resp) = pd + layout.res;
  rseq_is_not_registered(tp);
}

// Returns the variable of the thread with that TCB which `mine` is for the caller.
template <class T>
T& tls_of(void* tcb, T& mine) {
  return at<T>(thread_pointer_of(tcb), reinterpret_cast<char*>(&mine) - static_cast<char*>(thread_pointer()));
}

void free_dynamic_tls(void* tcb) {
  char* dtv = at<char*>(tcb, layout.dtv);
  size_t entries = *reinterpret_cast<size_t*>(dtv - layout.dtv_entry);
  const size_t size = layout.dtv_entry, val = layout.dtv_val;
  for (char *entry = dtv + size, *end = entry + entries * size; entry < end; entry += size) {
    void*& to_free = *reinterpret_cast<void**>(entry + sizeof(void*) - val);
    if (__builtin_expect(!to_free, 1)) continue;
    void* p = to_free;
    to_free = nullptr;
    *reinterpret_cast<void**>(entry + val) = reinterpret_cast<void*>(-1);  // not allocated: libc makes it anew on use
    free(p);
  }
}

}  // namespace

char* make_tcb(char* top) {
  char* pd = place(top);
  fill(pd);
  if (!dl_allocate_tls(thread_pointer_of(pd))) return nullptr;
  fill_tls(pd);
  return pd;
}

}  // namespace glibc

using namespace glibc;

// ---- blocks ----

size_t tcb_reserve() { return (tcb_and_tls_size() + 2 * layout.tls_align + 63) & ~size_t{63}; }
char* tcb_low(char* top) { return low_end(top); }
size_t tcb_align() { return layout.tls_align; }
size_t tcb_least_stack() { return ((layout.tls_size + layout.tls_align - 1) & ~(layout.tls_align - 1)) + 4096; }
size_t tcb_size() { return layout.sizeof_pthread; }
size_t tcb_libc_stack_size() {
  constexpr size_t kStack = 256 * 1024;
  return kStack + to_pages(tcb_reserve());
}

bool tcb_make(FiberRecord& f, char* top) {
  char* pd = make_tcb(top);
  if (!pd) return false;
  f.memory.tcb = pd;
  f.context.tp = thread_pointer_of(pd);
  tls_of(pd, tls_current) = &f;
  link_thread(pd);
  return true;
}

// No lock of libc may be taken here. No code that needs the program's TLS runs in worker context, so TCB, libc's variables and this
// library's are enough.
void* tcb_make_worker(char* top, char* stack_low, char* stack_high, Worker* w) {
  char* pd = place(top);
  fill(pd);
  // libc's variables are there for functions of libc that are called here all the same. Zeros are no thread's state (2.43: malloc's cache).
  memcpy(thread_pointer_of(pd) + libc_tls.offset, libc_tls.image, libc_tls.file_size);
  fill_tls(pd);
  at<char*>(pd, layout.stackblock) = stack_low;
  at<size_t>(pd, layout.stackblock_size) = stack_high - stack_low;
  tls_of(pd, tls_worker) = w;
  tls_of(pd, tls_busy) = 1;
  return thread_pointer_of(pd);
}

// ---- the life of a fiber ----

void tcb_begin(FiberRecord& f) {
  tls_of(f.memory.tcb, tls_busy) = 1;
  at<uint32_t>(f.memory.tcb, layout.tid) = f.identity.id;
  at<char*>(f.memory.tcb, layout.stackblock) = f.memory.stack_low;
  at<size_t>(f.memory.tcb, layout.stackblock_size) = f.memory.stack_high - f.memory.stack_low;
}

void tcb_forget_request(FiberRecord& f) { at<uint32_t>(f.memory.tcb, layout.cancelhandling) = 0; }

void tcb_first_steps() {
  ctype_init();
  if (__builtin_expect(pristine_known.load(std::memory_order_relaxed), 1)) return;
  static std::atomic<bool> taken{false};
  // The first fiber that comes here gives the picture of a pristine one. It has not run any code of the program yet.
  if (taken.exchange(true, std::memory_order_relaxed)) return;
  if (libc_tls.mem_size == 0 || libc_tls.mem_size > sizeof pristine) return;
  memcpy(pristine, static_cast<char*>(thread_pointer()) + libc_tls.offset, libc_tls.mem_size);
  pristine_known.store(true, std::memory_order_release);
}

void tcb_call_tls_destructors() { call_tls_dtors(); }

void tcb_end(FiberRecord& f) {
  free_dynamic_tls(f.memory.tcb);
  uselocale(LC_GLOBAL_LOCALE);
  tcb_look_at_modules();  // a dlopen that is under way may have loaded some
  reset_static_tls(thread_pointer_of(f.memory.tcb));
  for (uint32_t i = 0, n = learned_count.load(std::memory_order_acquire); i < n; i++)
    at<uint32_t>(f.memory.tcb, learned[i]) = at<uint32_t>(template_image, learned[i]);
  tcb_forget_request(f);
  at<void*>(f.memory.tcb, layout.cleanup_jmp_buf) = nullptr;
  if (layout.cleanup) at<void*>(f.memory.tcb, layout.cleanup) = nullptr;
  // The state for random numbers stays with the block. libc marks it as in use by the lowest bit. A thread that ended in a signal handler
  // may have left the mark, but nobody uses the state any more.
  if (layout.random) at<uintptr_t>(f.memory.tcb, layout.random) &= ~uintptr_t{1};
  dlerror();  // the next thread must not get an error that this one did not ask for
  h_errno = 0;
  errno = 0;
}

void tcb_learn(void (*use)()) {
  // A word has 4 bytes here, because use() changes small fields of libc and a pointer.
  char* pd = static_cast<char*>(self()->memory.tcb);
  constexpr size_t kMostWords = 1024;
  uint32_t before[kMostWords];
  size_t words = layout.sizeof_pthread / 4;
  if (words > kMostWords) return;
  memcpy(before, pd, words * 4);
  use();
  SpinGuard guard(learn_lock);
  if (learned_count.load(std::memory_order_relaxed)) return;
  uint32_t n = 0;
  auto is_others = [](size_t offset) {  // other threads write these
    return offset == layout.cancelhandling || offset - layout.list < 2 * sizeof(void*);
  };
  for (uint32_t i = 0; i < words && n < kMostLearned; i++) {
    if (at<uint32_t>(pd, i * 4) == before[i] || is_others(i * 4)) continue;
    at<uint32_t>(pd, i * 4) = before[i];
    learned[n++] = i * 4;
  }
  learned_count.store(n, std::memory_order_release);
}

// ---- the end of a block ----

bool tcb_is_pristine(const FiberRecord& f) {
  if (!pristine_known.load(std::memory_order_acquire)) return false;
  char* tls = thread_pointer_of(f.memory.tcb) + libc_tls.offset;
  char* resp = thread_pointer_of(f.memory.tcb) + layout.resp;
  for (size_t o = 0; o < libc_tls.mem_size; o += sizeof(long)) {
    if (tls + o == resp) continue;  // differs by where the block is
    if (memcmp(tls + o, pristine + o, sizeof(long)) != 0) return false;
  }
  if (layout.random && at<void*>(f.memory.tcb, layout.random)) return false;
  for (uint32_t i = 1; i < layout.level1_count; i++)
    if (at<char*>(f.memory.tcb, layout.specific + i * sizeof(char*))) return false;
  // The resolver state begins with zeros as long as it is not used.
  for (size_t o = 0; o < kResBytes; o += sizeof(long))
    if (at<long>(f.memory.tcb, layout.res + o)) return false;
  return true;
}

void tcb_prepare_adoption(FiberRecord& f) {
  at<uint32_t>(f.memory.tcb, layout.cancelhandling) = 0;
  if (layout.specific_used) at<uint8_t>(f.memory.tcb, layout.specific_used) = 1;  // otherwise libc would not free blocks of keys' values
}

void tcb_adopt(FiberRecord& f) {
  void* own = reinterpret_cast<void*>(pthread_self());
  // At the end of a thread, libc takes most things from the TCB that the thread pointer leads to. It takes this one from the TCB that the
  // thread was made with.
  if (layout.random && !at<void*>(own, layout.random)) {
    at<void*>(own, layout.random) = at<void*>(f.memory.tcb, layout.random);
    at<void*>(f.memory.tcb, layout.random) = nullptr;
  }
  set_thread_pointer(f.context.tp);
}

void tcb_release(FiberRecord& f) {
  char* pd = static_cast<char*>(f.memory.tcb);
  unlink_thread(pd);
  dl_deallocate_tls(thread_pointer_of(pd), false);
  f.memory.tcb = nullptr;
}

// ---- fields of a TCB ----

void** tcb_cleanup_jmp_buf(void* tcb) { return &at<void*>(tcb, layout.cleanup_jmp_buf); }
uint32_t* tcb_cancelhandling(void* tcb) {
  static uint32_t nobodys;  // for threads that are libc's own, where nothing is known of this libc
  return layout.sizeof_pthread ? &at<uint32_t>(tcb, layout.cancelhandling) : &nobodys;
}
uint32_t* tcb_tid(void* tcb) { return &at<uint32_t>(tcb, layout.tid); }
FiberRecord* tcb_fiber(void* tcb) { return tls_of(tcb, tls_current); }
void* tcb_robust_list(void* tcb) { return layout.robust_head ? static_cast<char*>(tcb) + layout.robust_head : nullptr; }
void* tcb_thread_pointer(void* tcb) { return thread_pointer_of(tcb); }

// ---- fork ----

FIBERTHREAD_IN_FORK_CHILD(Libc, libc, [](FiberRecord*) {
  free_loader_lock_after_fork();
  forget_modules_after_fork();
  learn_lock.reset();
})

}  // namespace fiberthread
