// SPDX-License-Identifier: MIT
// The registers of the code that a signal has interrupted.
#pragma once
#include <ucontext.h>

#include <cstdint>

namespace fiberthread {

inline uintptr_t interrupted_pc(const ucontext_t* uc) { return uc->uc_mcontext.pc; }
inline uintptr_t interrupted_sp(const ucontext_t* uc) { return uc->uc_mcontext.sp; }
inline uint64_t interrupted_register(const ucontext_t* uc, unsigned i) { return uc->uc_mcontext.regs[i]; }  // x0 to x15
inline void set_interrupted_pc(ucontext_t* uc, uintptr_t pc) { uc->uc_mcontext.pc = pc; }
inline void set_interrupted_result(ucontext_t* uc, long result) { uc->uc_mcontext.regs[0] = static_cast<uint64_t>(result); }

}  // namespace fiberthread
