// SPDX-License-Identifier: MIT
#include "shim/signal_frame.h"

#include <cstddef>
#include <cstring>

#include "sched/arch/aarch64/kernel_frame.h"
#include "sched/worker.h"

namespace fiberthread::signals {

static_assert(kInterruptSafePoint == 2, "signal_frame.S has it typed in");
// The frame is the kernel's own. Our words are where the kernel has nothing to say.
static_assert(offsetof(ucontext_t, uc_mcontext.regs) == 184 && offsetof(ucontext_t, uc_mcontext.sp) == 432 &&
              offsetof(ucontext_t, uc_mcontext.pc) == 440 && offsetof(Frame, context) == 128);

namespace {

struct Words {
  uint32_t busy;
  bool left, restarts;
  bool injected;  // by frame_inject(): only the registers and the mask are restored
};
static_assert(offsetof(Words, busy) == 0 && sizeof(Words) <= 16 && offsetof(ucontext_t, uc_stack) == 16);
Words& words_of(Frame* f) { return *reinterpret_cast<Words*>(f->uc()); }

struct FrameRecord {
  uint64_t fp, lr;
};

// Copies what the kernel has saved to below `top`, and makes the kernel return into `code` with that stack, as if the interrupted code had
// called it. Returns null, and has changed nothing, if the copy would be below `low`.
Frame* call_in_copy(ucontext_t* uc, uintptr_t top, uintptr_t low, uint64_t code) {
  auto& m = uc->uc_mcontext;
  uintptr_t record = (top - sizeof(FrameRecord)) & ~uintptr_t{15};
  uintptr_t at = (record - saved_size(uc) - offsetof(Frame, context)) & ~uintptr_t{15};
  if (at < low || at > top) return nullptr;
  auto* f = reinterpret_cast<Frame*>(at);
  copy_saved(f->uc(), uc);
  *reinterpret_cast<FrameRecord*>(record) = {m.regs[29], m.regs[30]};

  constexpr uint64_t kBranchType = 3 << 10;
  drop_scalable_state(uc);
  m.regs[29] = record;
  m.regs[30] = reinterpret_cast<uint64_t>(&fiberthread_sigreturn);
  m.sp = at;
  m.pc = code;
  m.pstate &= ~kBranchType;
  return f;
}

}  // namespace

// The scheduler has made sure that there is room.
void frame_inject(void* context, void (*fn)()) {
  auto* uc = static_cast<ucontext_t*>(context);
  Frame* f = call_in_copy(uc, uc->uc_mcontext.sp, 0, reinterpret_cast<uint64_t>(fn));
  // The mask is the fiber's, not the one that the kernel has: libc's own changes, as in posix_spawn(), do not move with the fiber.
  set_words(f->uc()->uc_sigmask, mask_of(tls_current));
  words_of(f) = {0, false, false, true};
}

bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during) {
  auto& m = uc->uc_mcontext;
  char* other = other_stack(a, m.sp);
  uintptr_t top = other ? reinterpret_cast<uintptr_t>(other) : m.sp;
  uintptr_t low = other ? reinterpret_cast<uintptr_t>(tls_current->memory.alternate.ss_sp) : lowest_frame(me, m.sp);
  Frame* f = call_in_copy(uc, top, low, reinterpret_cast<uint64_t>(a.handler));
  if (!f) return false;
  if (!me->run.kernel) f->uc()->uc_stack = show_alternate();
  set_words(f->uc()->uc_sigmask, before);
  f->info = info;
  words_of(f) = {busy, false, state_of(me).restarts, false};

  m.regs[0] = static_cast<uint64_t>(sig);
  m.regs[1] = reinterpret_cast<uint64_t>(&f->info);
  m.regs[2] = reinterpret_cast<uint64_t>(f->uc());
  set_words(uc->uc_sigmask, during);
  return true;
}

void frame_leaving(FiberRecord* me, Frame* f, uint32_t* busy) {
  Words& w = words_of(f);
  *busy = w.busy;
  if (w.injected) return;
  if (!w.left && !me->run.kernel) set_alternate(f->uc()->uc_stack, interrupted_sp(f->uc()));
  w.left = true;
  state_of(me).restarts = w.restarts;
}

// The kernel restores the alternate stack from the frame, so the frame must have that of the worker that the fiber is on now.
void frame_left(FiberRecord* me, Frame* f) {
  if (!me->run.kernel) f->uc()->uc_stack = {me->run.worker->thread.signal_stack, 0, kSignalStack};
}

}  // namespace fiberthread::signals
