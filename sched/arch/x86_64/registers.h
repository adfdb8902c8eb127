// SPDX-License-Identifier: MIT
// The registers as programs outside see them: `fiberthread dump` and debuggers.
#pragma once
#include <elf.h>
#include <sys/user.h>

#include <cstdint>

namespace fiberthread {

constexpr unsigned kMachine = EM_X86_64;

// The general registers in SavedFrame, as X(name, DWARF's number), and the one that has the address where the context goes on.
#define FIBERTHREAD_SAVED_REGISTERS(X) X(rbx, 3) X(rbp, 6) X(r12, 12) X(r13, 13) X(r14, 14) X(r15, 15)
#define FIBERTHREAD_SAVED_PC rip

// DWARF's numbers of the stack pointer and of the pc. 0: DWARF has no number for the pc.
constexpr unsigned kStackPointerNumber = 7, kPcNumber = 16;

template <class Registers>
void set_registers(Registers& to, const user_regs_struct& r) {
  const unsigned long long in_order[] = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                                         r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
  for (unsigned i = 0; i < 17; i++) to.set(i, in_order[i]);
  to.pc = r.rip;
}

// Return addresses on the stack are not signed.
constexpr uint64_t kSignatureBits = 0;

// The thread pointer is one of these registers. If kThreadPointerNote is not 0, it is in an ELF note of that type instead.
inline uint64_t thread_pointer_in(const user_regs_struct& r) { return r.fs_base; }
constexpr unsigned kThreadPointerNote = 0;

}  // namespace fiberthread
