// SPDX-License-Identifier: MIT
// Calls that change what the kernel keeps for each kernel thread separately.
#pragma once

#include <sys/syscall.h>

#include "sched/fiber.h"
#include "sched/scheduler.h"
#include "sched/syscall.h"
#include "shim/filter.h"

namespace fiberthread {

// Gives the calling fiber a kernel thread of its own, for good. Does nothing on a kernel thread. Returns 0 or an errno value.
int own_kernel_thread();

// Returns true if this system call changes the calling kernel thread only. `b` is its second argument.
bool call_is_of_thread(long number, long b);

// Stands around a system call that changes the kernel thread of the calling fiber, which gets one of its own first. It keeps that if the
// call succeeds. Does nothing on a kernel thread.
class OwnThreadForCall {
 public:
  OwnThreadForCall();
  ~OwnThreadForCall();
  OwnThreadForCall(const OwnThreadForCall&) = delete;
  int error() const { return error_; }  // an errno value; 0: none
  // Called after the call, with its number and first argument. Makes no system call: a filter may be in force.
  void succeeded(long number, long a);

 private:
  FiberRecord* me_;         // null: a kernel thread
  bool outermost_ = false;  // not inside another such call, which a handler has interrupted
  int error_ = 0;
};

// Makes system call `number`, with first argument `a`, through `call`. Returns the call's result, or a negative errno value.
template <class Call>
long on_own_thread(long number, long a, Call call) {
  OwnThreadForCall own;
  if (own.error()) return -own.error();
  long r = call();
  if (r >= 0) own.succeeded(number, a);
  return r;
}

// Makes system call `number`, which sets a filter of system calls, through `call`. That is given the address of the filter's program, which
// may be another than the caller's; 0: it has none. Results are those of the kernel.
template <class Call>
long set_filter(long number, long a, long b, const void* program, Call call) {
  filtered.fetch_add(1, std::memory_order_relaxed);  // before, because this call may be the last that is allowed
  sched_open_trap();
  FilterForKernel filter(program);
  auto with_program = [&] { return call(arg(filter.program())); };
  long r = number == SYS_prctl || call_is_of_thread(number, b) ? on_own_thread(number, a, with_program) : with_program();
  if (r < 0) filtered.fetch_sub(1, std::memory_order_relaxed);
  return r;
}

}  // namespace fiberthread
