// SPDX-License-Identifier: MIT
#include "sched/glibc/self_check.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include "sched/arch/arch.h"
#include "sched/arch/context.h"
#include "sched/glibc/loader_lock.h"
#include "sched/glibc/model.h"
#include "sched/glibc/modules.h"
#include "sched/glibc/processor.h"
#include "sched/glibc/rseq.h"
#include "sched/glibc/tcb.h"
#include "sched/large.h"
#include "sched/preempt.h"

namespace fiberthread {
namespace glibc {
namespace {

// ---- the lock of the list of threads ----

constexpr size_t kSearch = 512;  // bytes from the list's head that may hold its lock

// What the model thread sees in the handler of libc's signal.
constinit struct {
  kernel_handler* original;
  int during[kSearch / sizeof(int)];
  uint32_t cancel_during;
  std::atomic<bool> seen{false};
} in_handler{};

void setxid_wrapper(int sig, siginfo_t* info, void* context) {
  if (reinterpret_cast<char*>(pthread_self()) == model_tcb) {
    memcpy(in_handler.during, layout.stack_user, kSearch);
    in_handler.cancel_during = at<uint32_t>(model_tcb, layout.cancelhandling);
    in_handler.seen.store(true, std::memory_order_release);
  }
  OwnCalls calls;
  in_handler.original->handler(sig, info, context);
}

// Looks once, where the handler's place is taken by setxid_wrapper(). `again` is set if other threads may have spoiled it: one that begins
// or ends holds the lock meanwhile, and may have made our word a 2, since that is how a lock looks for which somebody waits.
const char* look_for_list_lock(int (*set_no_ids)(uid_t, uid_t, uid_t), bool& again) {
  int before[kSearch / sizeof(int)], after[kSearch / sizeof(int)];
  in_handler.seen.store(false);
  memcpy(before, layout.stack_user, kSearch);
  uint32_t cancel = at<uint32_t>(model_tcb, layout.cancelhandling);
  set_no_ids(-1, -1, -1);
  memcpy(after, layout.stack_user, kSearch);
  again = false;
  if (!in_handler.seen.load(std::memory_order_acquire)) return "set*id did not signal";
  uint32_t bit = in_handler.cancel_during & ~cancel;
  if (in_handler.cancel_during != cancel + bit || __builtin_popcount(bit) != 1 || at<uint32_t>(model_tcb, layout.cancelhandling) != cancel)
    return "cancelhandling is elsewhere";
  int found = -1;
  again = true;
  for (size_t i = 0; i < kSearch / sizeof(int); i++) {
    if (before[i] != 0 || (in_handler.during[i] != 1 && in_handler.during[i] != 2) || after[i] != 0) continue;
    if (found >= 0) return "the stack list's lock is not unique";
    found = static_cast<int>(i);
  }
  if (found < 0) return "the stack list's lock was not found";
  layout.list_lock = reinterpret_cast<std::atomic<int>*>(layout.stack_user + found * sizeof(int));
  return nullptr;
}

// libc holds the lock of its lists of stacks while it signals all other threads to change their ids. We ask it to change none, and look
// which word is taken only meanwhile. During that time, libc has one more bit set in each thread's cancelhandling.
const char* find_list_lock() {
  constexpr int kLooks = 100;
  kernel_handler old, wrapped;
  if (raw_syscall(SYS_rt_sigaction, kLibcSetxidSignal, 0, arg(&old), 8) != 0 || reinterpret_cast<uintptr_t>(old.handler) <= 1)
    return "no set*id handler";
  auto* real = reinterpret_cast<int (*)(uid_t, uid_t, uid_t)>(dlsym(RTLD_NEXT, "setresuid"));
  if (!real) return "no setresuid";
  in_handler.original = &old;
  wrapped = old;
  wrapped.handler = setxid_wrapper;
  raw_syscall(SYS_rt_sigaction, kLibcSetxidSignal, arg(&wrapped), 0, 8);
  const char* why;
  bool again;
  for (int i = 0; (why = look_for_list_lock(real, again)) && again && i < kLooks; i++) raw_syscall(SYS_sched_yield);
  raw_syscall(SYS_rt_sigaction, kLibcSetxidSignal, arg(&old), 0, 8);
  return why;
}

// ---- dtv and static TLS ----

struct TlsCheck {
  char *tp, *dtv;
  size_t entries;
  bool ours = false, libc = false;  // modules that were found to have static TLS
  const char* why = nullptr;
};

// Compares the loader's answer about one module's TLS in the calling thread with the thread's dtv and the loader's table.
int check_module(dl_phdr_info* info, size_t, void* data) {
  auto& c = *static_cast<TlsCheck*>(data);
  size_t id = info->dlpi_tls_modid;
  auto* tls = static_cast<char*>(info->dlpi_tls_data);
  if (!id || !tls) return 0;
  char *block, *to_free;
  char* entry = c.dtv + id * layout.dtv_entry;
  ptrdiff_t offset;
  if (id > c.entries || !read_word(entry + layout.dtv_val, block) || block != tls ||
      !read_word(entry + sizeof(void*) - layout.dtv_val, to_free)) {
    c.why = "the dtv is elsewhere";
    return 1;
  }
  if (!static_offset(id, offset, true)) return 0;
  if (c.tp + offset != tls || to_free) {
    c.why = "static TLS is elsewhere";
    return 1;
  }
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& ph = info->dlpi_phdr[i];
    auto in = [&](const void* p) {
      return ph.p_type == PT_TLS && reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(tls) < ph.p_memsz;
    };
    c.ours |= in(&tls_current);
    c.libc |= in(c.tp + layout.resp);
  }
  return 0;
}

const char* check_tls() {
  TlsCheck check{};
  check.tp = static_cast<char*>(thread_pointer());
  if (!read_word(reinterpret_cast<char*>(pthread_self()) + layout.dtv, check.dtv) ||
      !read_word(check.dtv - layout.dtv_entry, check.entries))
    return "the dtv is elsewhere";
  dl_iterate_phdr(check_module, &check);
  return check.why ? check.why : check.ours && check.libc ? nullptr : "the loader's table of TLS is elsewhere";
}

// ---- the proof ----

// Not inlined: the compiler must not use an address here that it has derived from another thread pointer.
__attribute__((noinline)) bool works_on(char* pd, char* room, size_t size) {
  ctype_init();
  errno = 77;
  char* e = reinterpret_cast<char*>(&errno);
  bool ok = e >= room && e < room + size && reinterpret_cast<char*>(pthread_self()) == pd && tls_current == nullptr;
  return ok && (*__ctype_b_loc())[int{'a'}] == (*__ctype_b_loc())[int{'b'}];
}

bool proven = false;

// Makes a TCB like any fiber's. libc must work on it. The caller has blocked signals.
bool prove() {
  FIBERTHREAD_LARGE alignas(64) static char room[65536];
  if (proven) return true;
  if (tcb_reserve() > sizeof room) return proven = true;  // TLS is large; the layout itself has been checked already
  char* pd = make_tcb(room + sizeof room);
  if (!pd) return false;
  void* mine = thread_pointer();
  set_thread_pointer(thread_pointer_of(pd));
  bool ok = works_on(pd, room, sizeof room);
  set_thread_pointer(mine);
  dl_deallocate_tls(thread_pointer_of(pd), false);
  proven = ok;
  return ok;
}

bool learned = false;  // in this process or one that it was forked from: libc and what it has in memory are the same in both

// Leaves the model thread waiting if it was made.
const char* learn(pthread_t* model, bool* made) {
  if (const char* why = read_descriptors()) return why;
  find_rseq();
  const char* why = start_model(model, made);
  if (!why) why = check_tls();
  if (!why) why = find_list_lock();
  if (!why && !prove()) why = "the self-check failed";
  learned = !why;
  return why;
}

const char* begin(void (*model_main)()) {
  pthread_t model;
  bool made = false;
  const char* why = learned ? nullptr : learn(&model, &made);
  // This comes last, because nothing has been changed so far. If another thread starts the scheduler, the initial thread's area is
  // unregistered when that thread becomes a worker.
  if (!why && tls_current->identity.is_main && !tcb_adopt_main()) why = "the kernel does not let go of the initial thread's rseq area";
  if (!why) find_loader_lock();
  if (made && (why || !model_main)) end_model(model);
  else if (made) release_model(model_main);
  else if (!why && model_main) why = start_known(model_main, &model);
  return why;
}

}  // namespace
}  // namespace glibc

bool tcb_known() { return glibc::learned; }

bool tcb_init(void (*model_main)(), const char** why) {
  using namespace glibc;
  if (!(*why = begin(model_main))) return true;
  if (!proven) layout = {};  // native threads are asked for their words of cancellation all the same: nothing wrong may be used
  return false;
}

}  // namespace fiberthread
