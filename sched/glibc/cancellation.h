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

// Where a TCB has one bit of a thread's settings. Until that is known, is_set() returns false for every thread.
struct LibcCancelBit {
  std::atomic<int32_t> offset{-1};
  std::atomic<uint32_t> bits{0};

  bool is_set(void* tcb) const {
    int32_t at = offset.load(std::memory_order_acquire);
    return at >= 0 && static_cast<volatile unsigned char*>(tcb)[at] & bits.load(std::memory_order_relaxed);
  }
  // Sets it for the calling thread, where it is known. Sequentially consistent. libc changes the bits beside it by such operations too.
  void set(void* tcb, bool on) const {
    auto* at = static_cast<unsigned char*>(tcb) + offset.load(std::memory_order_relaxed);
    auto bit = static_cast<unsigned char>(bits.load(std::memory_order_relaxed));
    if (on) __atomic_fetch_or(at, bit, __ATOMIC_SEQ_CST);
    else __atomic_fetch_and(at, static_cast<unsigned char>(~bit), __ATOMIC_SEQ_CST);
  }
  bool known() const { return offset.load(std::memory_order_acquire) >= 0; }
};
extern LibcCancelBit libc_cancel_asynchronous __attribute__((visibility("hidden")));
extern LibcCancelBit libc_cancel_disabled __attribute__((visibility("hidden")));

// The function in which libc, from 2.41 on, makes the system calls of its cancellation points. It looks for a request, and then makes the
// call. It changes nothing on the stack. `end` is where it goes on after the call, or 0 if no such function is known.
struct LibcWait {
  std::atomic<uintptr_t> begin{0}, end{0};

  bool known() const { return end.load(std::memory_order_relaxed); }
  // Returns true if a thread with that pc has not made the system call yet, or is about to make it anew. `end` is written last, so a thread
  // that sees it sees `begin` too.
  bool holds(uintptr_t pc) const {
    uintptr_t e = end.load(std::memory_order_acquire), b = begin.load(std::memory_order_relaxed);
    return pc - b < e - b;
  }
};
extern LibcWait libc_wait __attribute__((visibility("hidden")));

// libc's own functions. The embedder stands in front of them with functions of its own.
struct LibcCancelCalls {
  int (*set_state)(int, int*);
  int (*set_type)(int, int*);
  // Two different cancellation points. Each waits for a second with that signal mask.
  void (*wait)(const sigset_t*);
  void (*other_wait)(const sigset_t*);
};

// Finds the two bits. It has libc change the caller's settings, and looks which bits of the TCB change. Later calls do nothing.
void libc_find_cancel_bits(const LibcCancelCalls& libc);
// Finds libc_wait. A signal ends the two waits, and has to find both at the same place. The signal is kPreemptSignal, whose handler calls
// libc_wait_probed(). Any thread may call it. It looks once in a process.
void libc_find_wait(const LibcCancelCalls& libc);
// Called in that handler. Returns true if the signal was the experiment's.
bool libc_wait_probed(const ucontext_t* uc);

// Ends the wait that `uc` has interrupted in the thread of `tcb`, as a signal would. libc then finds the request to cancel. Does nothing
// unless the thread stands in libc_wait and libc would act upon the request in its word. Called by the thread itself, or in a handler on
// top of it. Returns true if it has ended the wait.
bool libc_end_wait(void* tcb, ucontext_t* uc);

}  // namespace fiberthread
