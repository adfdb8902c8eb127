// SPDX-License-Identifier: MIT
// Objects in libc's own form: process-shared ones, and mutexes that the kernel knows of (priority inheritance and protection).
// Their functions are libc's; what is here makes a fiber fit to call them.
//
// Such an object names its owner by a tid that the kernel and other processes can know, so not by a fiber's virtual one: a
// fiber that is to be an owner gets a kernel thread of its own, and its TCB has that one's tid during the call. What the
// kernel looks for when a thread dies, the list of robust mutexes in the TCB, is registered for that kernel thread.
//
// The main fiber needs no thread for that, as long as the kernel does not act for it: its tid is the process's, and the
// process's first kernel thread, which lasts as long as the process, has the list. For mutexes of the kernel's it keeps that
// thread if it is there. If not, two threads have one list, and if the process dies while main holds robust mutexes of both
// sorts, some may stay locked: the next owner of one changes links under the other's feet.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

enum class Use {
  Waits,       // nobody asks who it is
  Owns,        // its tid is stored, and compared
  KernelOwns,  // its kernel thread itself is the owner
  Ceiling,     // and gets another priority, which libc keeps account of in the TCB
};

// Around a call of libc's. Where it cannot have a thread of its own, a fiber has its virtual tid for ever.
class AsKernelThread {
 public:
  explicit AsKernelThread(Use use);
  ~AsKernelThread();
  AsKernelThread(const AsKernelThread&) = delete;

 private:
  uint32_t* tid_ = nullptr;
  uint32_t mine_ = 0, before_ = 0;
};

// The tid that `me`, the caller, has in such calls, as far as it is an owner already.
uint32_t owner_tid(FiberRecord* me, Use use);

// By who has just become a fiber, on the kernel thread that it has always been.
void shared_scheduler_started();

// By `me`, the caller, once no more code of the program runs on it: what it still holds passes to the next owner, with
// EOWNERDEAD.
void shared_robust_owner_died(FiberRecord* me);
// A robust list that the program made itself, in the kernel's form and with the fiber's tid. It counts when the thread ends;
// of a process that dies, the kernel does not know it.
constexpr long kRobustListSize = 24;
void*& own_robust_list(FiberRecord* f);

}  // namespace fiberthread
