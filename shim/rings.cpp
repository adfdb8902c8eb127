// SPDX-License-Identifier: MIT
// A ring of io_uring may belong to one kernel thread: it says so itself (IORING_SETUP_SINGLE_ISSUER), or that thread has registered it to
// spare the kernel a look at the descriptor. All other threads get errors. So the fiber that makes such a ring gets a kernel thread of its
// own first, and main keeps the one on which it made its ring before there were threads.
//
// liburing makes its system calls by instructions of its own. So the functions that make such calls are served here, and call those that the
// caller would have called: the next ones in the global scope, or else those which the caller's object finds.
#include "shim/rings.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/own_thread.h"
#include "shim/real.h"
#include "shim/syscall_parts.h"
#include "shim/user_memory.h"

namespace fiberthread {
namespace {

constexpr uint32_t kSingleIssuer = 1 << 12;   // IORING_SETUP_SINGLE_ISSUER, of Linux 6.0
constexpr unsigned kByRegistered = 1u << 31;  // IORING_REGISTER_USE_REGISTERED_RING, of Linux 6.3
// Relaxed: main sets it before it starts the scheduler, and reads it then.
std::atomic<bool> initial_thread_has_ring{false};

bool enables_or_registers(unsigned what) {
  what &= ~kByRegistered;
  return what == IORING_REGISTER_ENABLE_RINGS || what == IORING_REGISTER_RING_FDS;
}

// Makes a call after which only the calling kernel thread may use the ring.
template <class Call>
long for_this_thread(long number, Call call) {
  long r = on_own_thread(number, 0, call);
  if (r >= 0 && !sched_started() && raw_syscall(SYS_gettid) == raw_syscall(SYS_getpid))
    initial_thread_has_ring.store(true, std::memory_order_relaxed);
  return r;
}

// Returns the function that the caller would have called. Null: there is none.
template <class Function>
Function* behind(const char* name, const void* caller) {
  void* found = find_real(name);
  Dl_info info;
  link_map* map = nullptr;
  if (!found && dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) && map)
    if (void* object = REAL(dlopen)(map->l_name, RTLD_LAZY | RTLD_NOLOAD)) {
      found = dlsym(object, name);
      REAL(dlclose)(object);
    }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

long ring_call(long number, long a, long b, long c, long d) {
  auto call = [&] { return program_syscall(number, a, b, c, d, 0, 0); };
  bool is_for_one;
  if (number == SYS_io_uring_register) {
    is_for_one = enables_or_registers(static_cast<unsigned>(b));
  } else {
    io_uring_params p;
    is_for_one = copy_user(&p, reinterpret_cast<const io_uring_params*>(b)) && p.flags & kSingleIssuer;
  }
  return is_for_one ? for_this_thread(number, call) : call();
}

void rings_scheduler_started() {
  if (initial_thread_has_ring.load(std::memory_order_relaxed)) sched_bind_to_initial();
}

}  // namespace fiberthread

using namespace fiberthread;

// liburing's functions. They return negative errno values.
extern "C" {
struct io_uring;
int io_uring_queue_init(unsigned entries, io_uring*, unsigned flags);
int io_uring_queue_init_params(unsigned entries, io_uring*, io_uring_params*);
int io_uring_queue_init_mem(unsigned entries, io_uring*, io_uring_params*, void*, size_t);
int io_uring_setup(unsigned entries, io_uring_params*);
int io_uring_register(unsigned fd, unsigned what, const void*, unsigned n);
int io_uring_register_ring_fd(io_uring*);
int io_uring_enable_rings(io_uring*);
}

namespace {
template <class... P, class... A>
[[gnu::always_inline]] inline int in_liburing(int (*)(P...), const char* name, bool is_for_one, A... arguments) {
  auto* function = behind<int(P...)>(name, __builtin_return_address(0));
  if (!function) return -ENOSYS;
  auto call = [&] { return function(arguments...); };
  return static_cast<int>(is_for_one ? for_this_thread(SYS_io_uring_setup, call) : call());
}
}  // namespace
#define IN_LIBURING(name, ...) in_liburing(name, #name, __VA_ARGS__)

FIBERTHREAD_EXPORT int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  return IN_LIBURING(io_uring_queue_init, flags & kSingleIssuer, entries, ring, flags);
}
FIBERTHREAD_EXPORT int io_uring_queue_init_params(unsigned entries, io_uring* ring, io_uring_params* p) {
  return IN_LIBURING(io_uring_queue_init_params, p->flags & kSingleIssuer, entries, ring, p);
}
FIBERTHREAD_EXPORT int io_uring_queue_init_mem(unsigned entries, io_uring* ring, io_uring_params* p, void* memory, size_t size) {
  return IN_LIBURING(io_uring_queue_init_mem, p->flags & kSingleIssuer, entries, ring, p, memory, size);
}
FIBERTHREAD_EXPORT int io_uring_setup(unsigned entries, io_uring_params* p) {
  return IN_LIBURING(io_uring_setup, p->flags & kSingleIssuer, entries, p);
}
FIBERTHREAD_EXPORT int io_uring_register(unsigned fd, unsigned what, const void* argument, unsigned n) {
  return IN_LIBURING(io_uring_register, enables_or_registers(what), fd, what, argument, n);
}
FIBERTHREAD_EXPORT int io_uring_register_ring_fd(io_uring* ring) { return IN_LIBURING(io_uring_register_ring_fd, true, ring); }
FIBERTHREAD_EXPORT int io_uring_enable_rings(io_uring* ring) { return IN_LIBURING(io_uring_enable_rings, true, ring); }
