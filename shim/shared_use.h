// SPDX-License-Identifier: MIT
// Objects in libc's own form: process-shared objects, and mutexes that the kernel knows of (priority inheritance and protection). Their
// functions are libc's. This file makes a fiber fit to call them.
//
// Such an object names its owner by a tid that the kernel and other processes can know, so not by a fiber's virtual tid. A fiber that
// becomes an owner gets a kernel thread of its own, and its TCB has that thread's tid during the call. When a thread dies, the kernel looks
// for the list of robust mutexes in the TCB. That list is registered for the fiber's kernel thread.
//
// The main fiber needs no kernel thread of its own for that, as long as the kernel does not act for it. Its tid is the process's. The
// process's first kernel thread lasts as long as the process, and has the list. For mutexes that the kernel owns, the main fiber keeps that
// thread if the thread is there. If it is not, two threads have one list. If the process then dies while main holds robust mutexes of both
// sorts, some may stay locked, because the next owner of one changes links that the other list needs.
#pragma once
#include <cstdint>

#include "sched/fiber.h"

namespace fiberthread {

enum class Use {
  Waits,       // the object does not store the fiber's tid
  Owns,        // the object stores and compares the fiber's tid
  KernelOwns,  // the fiber's kernel thread itself is the owner
  Ceiling,     // as KernelOwns, and the owner gets another priority, of which libc keeps account in the TCB
};

// Surrounds a call of libc's function. A fiber that cannot get a kernel thread of its own keeps its virtual tid for ever.
class AsKernelThread {
 public:
  explicit AsKernelThread(Use use);
  ~AsKernelThread();
  AsKernelThread(const AsKernelThread&) = delete;

 private:
  uint32_t* tid_ = nullptr;
  uint32_t mine_ = 0, before_ = 0;
};

// Returns the tid that `me`, the caller, has in such calls, as far as it is an owner already.
uint32_t owner_tid(FiberRecord* me, Use use);

// Called by a thread that has just become a fiber, on the kernel thread that it has always had.
void shared_scheduler_started();

// Hands what `me`, the caller, still holds to the next owners, with EOWNERDEAD. Called once no more code of the program runs on `me`.
void shared_robust_owner_died(FiberRecord* me);
// A robust list that the program has made itself, in the kernel's form and with the fiber's tid. The library goes through it when the
// thread ends. If the process is killed, nothing does, since the kernel does not know the list.
constexpr long kRobustListSize = 24;
void*& own_robust_list(FiberRecord* f);

}  // namespace fiberthread
