// SPDX-License-Identifier: MIT
// The registers of the code that a signal has interrupted.
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace fiberthread {

inline uintptr_t interrupted_pc(const ucontext_t* uc) { return uc->uc_mcontext.pc; }
inline uintptr_t interrupted_sp(const ucontext_t* uc) { return uc->uc_mcontext.sp; }
inline uint64_t interrupted_register(const ucontext_t* uc, unsigned i) { return uc->uc_mcontext.regs[i]; }  // x0 to x15
// All that DWARF has numbers for, by these. Returns a bit for each.
inline uint64_t interrupted_registers(const ucontext_t* uc, uint64_t (&to)[33]) {
  for (unsigned i = 0; i < 31; i++) to[i] = uc->uc_mcontext.regs[i];
  to[31] = uc->uc_mcontext.sp;
  return (uint64_t{1} << 32) - 1;
}
inline void set_interrupted_pc(ucontext_t* uc, uintptr_t pc) { uc->uc_mcontext.pc = pc; }
inline void set_interrupted_result(ucontext_t* uc, long result) { uc->uc_mcontext.regs[0] = static_cast<uint64_t>(result); }

}  // namespace fiberthread
