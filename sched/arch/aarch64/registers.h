// SPDX-License-Identifier: MIT
// The registers as programs outside see them: `fiberthread dump` and debuggers.
#pragma once
#include <elf.h>
#include <sys/user.h>

#include <cstdint>

namespace fiberthread {

constexpr unsigned kMachine = EM_AARCH64;

// The general registers in SavedFrame, as X(name, DWARF's number), and the one that has the address where the context goes on.
#define FIBERTHREAD_SAVED_REGISTERS(X) \
  X(x19, 19) X(x20, 20) X(x21, 21) X(x22, 22) X(x23, 23) X(x24, 24) X(x25, 25) X(x26, 26) X(x27, 27) X(x28, 28) X(x29, 29) X(x30, 30)
#define FIBERTHREAD_SAVED_PC x30

// DWARF's numbers of the stack pointer and of the pc. 0: DWARF has no number for the pc.
constexpr unsigned kStackPointerNumber = 31, kPcNumber = 0;

template <class Registers>
void set_registers(Registers& to, const user_regs_struct& r) {
  for (unsigned i = 0; i < 31; i++) to.set(i, r.regs[i]);
  to.set(31, r.sp);
  to.pc = r.pc;
}

// Return addresses on the stack may be signed, in bits that addresses of code do not have.
constexpr uint64_t kSignatureBits = 0xffff'0000'0000'0000;

// The thread pointer is one of these registers. If kThreadPointerNote is not 0, it is in an ELF note of that type instead.
inline uint64_t thread_pointer_in(const user_regs_struct&) { return 0; }
constexpr unsigned kThreadPointerNote = NT_ARM_TLS;

}  // namespace fiberthread
