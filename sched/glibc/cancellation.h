// SPDX-License-Identifier: MIT
// How libc cancels its threads: what it keeps in their TCBs, and where it makes its own cancellable waits.
#pragma once
#include <signal.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>

namespace fiberthread {

// Bits of the word that tcb_cancelhandling() gives, stable since 2.0.
constexpr uint32_t kLibcCanceled = 8, kLibcExiting = 16;

// Where a TCB has one bit of a thread's settings. Not set in any thread as long as it is not known where that is.
struct LibcCancelBit {
  std::atomic<int32_t> offset{-1};
  std::atomic<uint32_t> bits{0};

  bool is_set(void* tcb) const {
    int32_t at = offset.load(std::memory_order_acquire);
    return at >= 0 && static_cast<volatile unsigned char*>(tcb)[at] & bits.load(std::memory_order_relaxed);
  }
};
extern LibcCancelBit libc_cancel_asynchronous __attribute__((visibility("hidden")));
extern LibcCancelBit libc_cancel_disabled __attribute__((visibility("hidden")));

// The function in which libc, from 2.41 on, makes the system calls of its cancellation points: it looks for a request, and makes the call.
// Nothing that is on the stack changes in it. `end` is where it goes on after the call. 0: there is no such function, or it is not known.
struct LibcWait {
  std::atomic<uintptr_t> begin{0}, end{0};

  bool known() const { return end.load(std::memory_order_relaxed); }
  // Returns true if the thread that stands there has not made the system call, or is to make it anew. `end` is written last, so with it
  // `begin` is seen.
  bool holds(uintptr_t pc) const {
    uintptr_t e = end.load(std::memory_order_acquire), b = begin.load(std::memory_order_relaxed);
    return pc - b < e - b;
  }
};
extern LibcWait libc_wait __attribute__((visibility("hidden")));

// libc's own functions, in front of which the embedder has some of its own.
struct LibcCancelCalls {
  int (*set_state)(int, int*);
  int (*set_type)(int, int*);
  // Two different cancellation points: each waits for a second, with that signal mask.
  void (*wait)(const sigset_t*);
  void (*other_wait)(const sigset_t*);
};

// Finds the two bits: libc changes the caller's, and that shows where they are. Idempotent.
void libc_find_cancel_bits(const LibcCancelCalls& libc);
// Finds libc_wait: a signal ends the two waits, and finds both at one and the same place. Once in a process, by any thread. The signal is
// kPreemptSignal, whose handler calls libc_wait_probed().
void libc_find_wait(const LibcCancelCalls& libc);
// In that handler. Returns true if the signal was the experiment's.
bool libc_wait_probed(const ucontext_t* uc);

// If the thread of that TCB waits there, and libc would act upon the request that stands in its word: the call ends as if by a signal, and
// libc finds the request. By the thread itself, or in a handler on top of it. Returns true if so.
bool libc_end_wait(void* tcb, ucontext_t* uc);

}  // namespace fiberthread
