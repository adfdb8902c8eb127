// SPDX-License-Identifier: MIT
// The stall watch, for FIBERTHREAD_STALL_MS: fibers that keep others waiting for longer than that, with their stacks as they were then.
//
// Sysmon looks. Of a fiber that runs, the worker itself copies registers and stack, in the handler of a signal, because the fiber may have
// gone on before another process could look at it. Of one that is off its stack, sysmon copies them. `fiberthread dump --sample` then
// makes names of the copy.
#pragma once
#include <ucontext.h>

#include "sched/fiber.h"

namespace fiberthread {

struct Worker;

enum class Stall : uint8_t { Ready, Stuck, Lock, Count };
const char* stall_name(Stall kind);
uint64_t stalls(Stall kind);  // that were seen in this process

// Called before the scheduler starts. 0: no watch.
void stall_after(uint32_t ms);
bool stalls_watched();
uint64_t stall_limit();  // ns

// Called by sysmon: for each fiber of a round, for each worker at each look, and at each look.
void stall_visit(FiberRecord* f, uint64_t now);
void stall_look_at(Worker* w, uint64_t now);
void stall_attend(uint64_t now);

// The copy of one fiber, which readers outside know.
struct StallSample {
  enum State : uint32_t { kFree, kAsked, kCopying, kTaken };
  std::atomic<uint32_t> state{kFree};  // futex-less: sysmon asks, the worker copies, sysmon frees
  uint64_t fiber = 0;                  // its id, and its name: it may end before it is dumped
  char name[16] = {};
  bool is_main = false;
  uint32_t beat = 0;            // its worker's heartbeat then: the fiber has not waited since
  uint64_t registers[33] = {};  // by DWARF's numbers
  uint64_t known = 0;           // a bit for each of them that has a value
  uint64_t pc = 0;
  uint64_t size = 0;  // bytes of its stack, from the stack pointer on
  char stack[64 * 1024] = {};
};
extern StallSample stall_sample;
void stall_free_sample();
// In the handler of kPreemptSignal, on the worker. Returns whether the signal was sent for a sample.
bool stall_on_signal(const siginfo_t* info, const ucontext_t* uc);

}  // namespace fiberthread
