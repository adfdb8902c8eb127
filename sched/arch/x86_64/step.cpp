// SPDX-License-Identifier: MIT
// The flag for steps, and the memory operand of an instruction (Intel's manual, volume 2, chapter 2 and appendix A).
#include "sched/arch/step.h"

#include <sys/syscall.h>

#include "sched/arch/inject.h"

namespace fiberthread {

namespace {

// ---- decoding ----

class Instruction {
 public:
  explicit Instruction(const ucontext_t* uc) : regs_(uc->uc_mcontext.gregs), at_(reinterpret_cast<const uint8_t*>(regs_[REG_RIP])) {}

  Access access() {
    prefixes();
    uint8_t op = next();
    if (op == 0xc5 || op == 0xc4 || op == 0x62) return vector(op);
    if (op == 0x0f) {
      op = next();
      if (op == 0x38) {
        next();
        return operand(0);
      }
      if (op == 0x3a) {
        next();
        return operand(1);
      }
      return two_bytes(op);
    }
    return one_byte(op);
  }

 private:
  uint8_t next() { return *at_++; }

  void prefixes() {
    for (;; at_++) {
      uint8_t p = *at_;
      if (p == 0x66) half_ = true;
      else if (p == 0x67) short_address_ = true;
      else if (p == 0xf0) locked_ = true;
      else if (p == 0x64 || p == 0x65) own_segment_ = true;
      else if (p != 0xf2 && p != 0xf3 && p != 0x2e && p != 0x36 && p != 0x3e && p != 0x26) break;
    }
    if ((*at_ & 0xf0) == 0x40) rex_ = next();
  }

  // The vector prefixes carry REX's bits, inverted. All instructions have an operand, but for vzeroupper and vzeroall.
  Access vector(uint8_t op) {
    uint8_t p = next(), map = 1;
    if (op == 0xc4) {
      rex_ = static_cast<uint8_t>(~p >> 5 & 7);
      map = p & 31;
      next();
    } else if (op == 0x62) {
      rex_ = static_cast<uint8_t>(~p >> 5 & 7);
      map = p & 7;
      next();
      next();
      scaled_ = true;
    }
    if (next() == 0x77 && map == 1) return {};
    return operand(map == 3);
  }

  Access one_byte(uint8_t op) {
    uint8_t low = op & 7, group = op >> 3 & 7;
    unsigned full = half_ ? 2 : 4;  // size of most constants
    uint8_t size = op & 1 ? word() : 1;
    if (op < 0x40) {
      if (low >= 4) return {};
      bool writes = low < 2 && group != 7;
      return operand(0, writes ? size : 0);
    }
    switch (op) {
      case 0x63: return operand(0);
      case 0x69: return operand(full);
      case 0x6b: return operand(1);
      case 0x80:
      case 0x82:
      case 0x83: return operand(1, extension() != 7 ? size : 0);
      case 0x81: return operand(full, extension() != 7 ? size : 0);
      case 0x84:
      case 0x85:
      case 0x86:  // xchg is always locked
      case 0x87:
      case 0x88:
      case 0x89:
      case 0x8a:
      case 0x8b:
      case 0x8c:
      case 0x8e: return operand(0);
      case 0xa0:
      case 0xa1:
      case 0xa2:
      case 0xa3: return {Access::Once};
      case 0xa4:  // movs, cmps, stos, lods, scas: rdi, or rsi
      case 0xa5:
      case 0xa6:
      case 0xa7:
      case 0xaa:
      case 0xab:
      case 0xae:
      case 0xaf: return {Access::Once, 0, reg(7)};
      case 0xac:
      case 0xad: return {Access::Once, 0, reg(6)};
      case 0xc0:
      case 0xc1: return operand(1, size);
      case 0xc6: return operand(1);
      case 0xc7: return operand(full);
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3: return operand(0, size);
      case 0xf6:
      case 0xf7: return operand(extension() < 2 ? (op & 1 ? full : 1) : 0, extension() == 2 || extension() == 3 ? size : 0);
      case 0xfe: return operand(0, size);
      case 0xff:
        // A jump by an address beside the code, or its push: nearly all of them are in stubs of the linker.
        if ((extension() == 4 || extension() == 6) && (*at_ & 0xc7) == 5) return {};
        return operand(0, extension() < 2 ? size : 0);
      case 0x9c:  // pushf, popf, int3, int, int1
      case 0x9d:
      case 0xcc:
      case 0xcd:
      case 0xf1: return {Access::Barred};
      default: break;
    }
    if (op >= 0xd8 && op <= 0xdf) return operand(0);
    return {};
  }

  Access two_bytes(uint8_t op) {
    uint8_t size = op & 1 ? word() : 1;
    switch (op) {
      case 0x05: return {concerns_memory(reg(0)) ? Access::None : Access::Barred};
      case 0x34: return {Access::Barred};  // sysenter
      case 0x0d:                           // prefetches and operations without effect
      case 0x18:
      case 0x19:
      case 0x1a:
      case 0x1b:
      case 0x1c:
      case 0x1d:
      case 0x1e:
      case 0x1f:
      case 0xae: return {};  // fences, and rarely needed state
      case 0xa4:
      case 0xac: return operand(1, word());
      case 0xa5:
      case 0xad: return operand(0, word());
      case 0xb0:
      case 0xb1:
      case 0xc0:
      case 0xc1: return operand(0, size);
      case 0xba: return operand(1, extension() > 4 ? word() : 0);
      case 0xa3:  // the bit's number may lead away from the operand
      case 0xab:
      case 0xb3:
      case 0xbb: return {(*at_ & 0xc0) == 0xc0 ? Access::None : Access::Once};
      case 0x70:
      case 0x71:
      case 0x72:
      case 0x73:
      case 0xc2:
      case 0xc4:
      case 0xc5:
      case 0xc6: return operand(1);
      default: break;
    }
    bool none = (op >= 0x04 && op <= 0x0b) || (op >= 0x30 && op <= 0x37) || op == 0x77 || (op & 0xf0) == 0x80 ||
                (op >= 0xa0 && op <= 0xa2) || (op >= 0xa8 && op <= 0xaa) || (op >= 0xc8 && op <= 0xcf);
    return none ? Access{} : operand(0);
  }

  // malloc() makes these system calls.
  static bool concerns_memory(uintptr_t call) {
    return call == SYS_brk || call == SYS_mmap || call == SYS_munmap || call == SYS_mprotect || call == SYS_madvise || call == SYS_mremap;
  }

  uint8_t word() const { return rex_ & 8 ? 8 : half_ ? 2 : 4; }
  uint8_t extension() const { return *at_ >> 3 & 7; }

  uintptr_t reg(unsigned number) const {
    static constexpr uint8_t kIndex[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                         REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return static_cast<uintptr_t>(regs_[kIndex[number]]);
  }
  template <class T>
  uintptr_t constant() {
    T value;
    __builtin_memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return static_cast<uintptr_t>(static_cast<intptr_t>(value));
  }

  // The memory operand, if there is one. `constant_size`: bytes of the instruction that follow it. `written`: the size of what is read there and
  // then written, or 0.
  Access operand(unsigned constant_size, uint8_t written = 0) {
    uint8_t modrm = next(), mode = modrm >> 6, rm = modrm & 7;
    if (mode == 3 || own_segment_) return {};
    uintptr_t address = 0;
    bool after_code = false;
    if (rm == 4) {
      uint8_t sib = next();
      unsigned index = (sib >> 3 & 7) | (rex_ & 2 ? 8 : 0), base = sib & 7;
      if (index != 4) address = reg(index) << (sib >> 6);
      if (base == 5 && mode == 0) address += constant<int32_t>();
      else address += reg(base | (rex_ & 1 ? 8 : 0));
    } else if (rm == 5 && mode == 0) {
      address = constant<int32_t>();
      after_code = true;
    } else {
      address = reg(rm | (rex_ & 1 ? 8 : 0));
    }
    if (mode == 1) {
      address += constant<int8_t>();
      if (scaled_ && at_[-1]) address = 0;
    } else if (mode == 2) {
      address += constant<int32_t>();
    }
    if (after_code) address += reinterpret_cast<uintptr_t>(at_) + constant_size;
    if (short_address_ || !address) return {Access::Once};
    return {written && !locked_ ? Access::ReadThenWrite : Access::Once, written, address};
  }

  const greg_t* regs_;
  const uint8_t* at_;
  uint8_t rex_ = 0;
  bool half_ = false, short_address_ = false, locked_ = false, own_segment_ = false;
  bool scaled_ = false;  // a displacement of one byte counts in units that only the whole instruction tells
};

}  // namespace

Access next_access(const ucontext_t* uc) { return Instruction(uc).access(); }

// ---- the flag ----

void set_stepping(ucontext_t* uc, bool on) {
  auto& flags = uc->uc_mcontext.gregs[REG_EFL];
  flags = on ? flags | static_cast<greg_t>(kStepFlag) : flags & ~static_cast<greg_t>(kStepFlag);
}

void inject_stepping(uintptr_t sp) {
  constexpr uintptr_t kFlags = 152;  // below the interrupted stack pointer: trampoline.S
  *reinterpret_cast<uint64_t*>(sp - kFlags) |= kStepFlag;
}

}  // namespace fiberthread
