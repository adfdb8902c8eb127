// SPDX-License-Identifier: MIT
#include "shim/signal_frame.h"

#include <cstddef>
#include <cstring>

namespace fiberthread::signals {

static_assert(kInterruptSafePoint == 2, "signal_frame.S has it typed in");
static_assert(offsetof(Frame, context) == 8 && offsetof(Frame, info) == 312 && offsetof(Frame, busy) == 440);
static_assert(offsetof(ucontext_t, uc_mcontext) == 40 && offsetof(ucontext_t, uc_sigmask) == 296 &&
              offsetof(ucontext_t, uc_mcontext.gregs[REG_RSP]) == 160 && offsetof(ucontext_t, uc_mcontext.gregs[REG_RIP]) == 168 &&
              offsetof(ucontext_t, uc_mcontext.gregs[REG_EFL]) == 176 && offsetof(ucontext_t, uc_mcontext.fpregs) == 224);

namespace {

constexpr uintptr_t kRedZone = 128;

// The state that fpregs points to: the processor's format of XSAVE. The kernel says how much there is in a part that the processor leaves
// to software.
constexpr size_t kLegacySize = 512, kMagicAt = 464, kSizeAt = 468, kInUseAt = 512, kControlAt = 0, kMxcsrAt = 24;
constexpr uint32_t kMagic = 0x46505853, kInitialMxcsr = 0x1f80;
constexpr uint16_t kInitialControl = 0x37f;
constexpr uint64_t kPkru = 1 << 9;

bool extended(const char* state) {
  uint32_t magic;
  memcpy(&magic, state + kMagicAt, sizeof magic);
  return magic == kMagic;
}

size_t size_of(const char* state) {
  uint32_t size;
  memcpy(&size, state + kSizeAt, sizeof size);
  return extended(state) ? size : kLegacySize;
}

// Makes the state that a handler starts with. All is initial, as for the kernel's own frames, but the protection keys stay.
void make_initial(char* state) {
  memset(state + kControlAt, 0, 8);
  memcpy(state + kControlAt, &kInitialControl, sizeof kInitialControl);
  memcpy(state + kMxcsrAt, &kInitialMxcsr, sizeof kInitialMxcsr);
  if (!extended(state)) return;
  uint64_t in_use;
  memcpy(&in_use, state + kInUseAt, sizeof in_use);
  in_use &= kPkru;
  memcpy(state + kInUseAt, &in_use, sizeof in_use);
}

}  // namespace

bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during) {
  auto& regs = uc->uc_mcontext.gregs;
  uintptr_t sp = interrupted_sp(uc);
  char* state = reinterpret_cast<char*>(uc->uc_mcontext.fpregs);
  size_t size = size_of(state);
  char* other = other_stack(a, sp);
  uintptr_t top = other ? reinterpret_cast<uintptr_t>(other) : sp - kRedZone;
  uintptr_t low = other ? reinterpret_cast<uintptr_t>(tls_current->memory.alternate.ss_sp) : lowest_frame(me, sp);
  uintptr_t copy = (top - size) & ~uintptr_t{63};
  // The handler finds its return address where a call would have put it.
  uintptr_t at = ((copy - sizeof(Frame)) & ~uintptr_t{15}) - 8;
  if (at < low || copy > top) return false;
  memcpy(reinterpret_cast<char*>(copy), state, size);
  auto* f = reinterpret_cast<Frame*>(at);
  f->back = reinterpret_cast<void*>(&fiberthread_sigreturn);
  memcpy(&f->context, uc, sizeof f->context);
  f->uc()->uc_mcontext.fpregs = reinterpret_cast<fpregset_t>(copy);
  if (!me->run.kernel) f->uc()->uc_stack = show_alternate();
  set_words(f->uc()->uc_sigmask, before);
  f->info = info;
  f->busy = busy;
  f->left = false;
  f->restarts = state_of(me).restarts;
  f->flags = uc->uc_flags;

  constexpr greg_t kDirection = 0x400, kTrap = 0x100, kResume = 0x10000;
  make_initial(state);
  regs[REG_RIP] = reinterpret_cast<greg_t>(a.handler);
  regs[REG_RSP] = static_cast<greg_t>(at);
  regs[REG_RDI] = sig;
  regs[REG_RSI] = reinterpret_cast<greg_t>(&f->info);
  regs[REG_RDX] = reinterpret_cast<greg_t>(f->uc());
  regs[REG_RAX] = 0;
  regs[REG_EFL] &= ~(kDirection | kTrap | kResume);
  set_words(uc->uc_sigmask, during);
  return true;
}

void frame_leaving(FiberRecord* me, Frame* f, uint32_t* busy) {
  *busy = f->busy;
  if (!f->left && me->run.kernel) raw_syscall(SYS_sigaltstack, arg(&f->uc()->uc_stack), 0);  // as the kernel's sigreturn does
  else if (!f->left) set_alternate(f->uc()->uc_stack, interrupted_sp(f->uc()));
  f->left = true;  // from here on, the words for iretq may overwrite uc_stack
  f->uc()->uc_flags = f->flags;
  f->uc()->uc_link = nullptr;
  state_of(me).restarts = f->restarts;
}

void frame_left(FiberRecord*, Frame*) {}

}  // namespace fiberthread::signals
