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
inline void set_interrupted_pc(ucontext_t* uc, uintptr_t pc) { uc->uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(pc); }
inline void set_interrupted_result(ucontext_t* uc, long result) { uc->uc_mcontext.gregs[REG_RAX] = result; }

}  // namespace fiberthread
