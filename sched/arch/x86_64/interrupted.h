// SPDX-License-Identifier: MIT
// The registers of the code that a signal has interrupted.
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace fiberthread {

inline uintptr_t interrupted_pc(const ucontext_t* uc) { return static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RIP]); }
inline uintptr_t interrupted_sp(const ucontext_t* uc) { return static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RSP]); }
inline uint64_t interrupted_register(const ucontext_t* uc, unsigned i) {  // all but rsp, twice r8
  return static_cast<uint64_t>(uc->uc_mcontext.gregs[i < REG_RSP ? i : 0]);
}
// All that DWARF has numbers for, by these. Returns a bit for each.
inline uint64_t interrupted_registers(const ucontext_t* uc, uint64_t (&to)[33]) {
  constexpr int kInOrder[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                              REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  for (unsigned i = 0; i < 17; i++) to[i] = static_cast<uint64_t>(uc->uc_mcontext.gregs[kInOrder[i]]);
  return (uint64_t{1} << 17) - 1;
}
inline void set_interrupted_pc(ucontext_t* uc, uintptr_t pc) { uc->uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(pc); }
inline void set_interrupted_result(ucontext_t* uc, long result) { uc->uc_mcontext.gregs[REG_RAX] = result; }

}  // namespace fiberthread
