#include "shim/signal_frame.h"

#include <errno.h>
#include <stddef.h>

#if defined(__aarch64__)
#include "sched/kernel_frame.h"
#endif
#include "sched/preempt.h"
#include "sched/tcb.h"
#include "shim/export.h"
#include "shim/real.h"
#include "shim/user_memory.h"

extern "C" {
// Where handlers return to; signal_frame_<arch>.S.
void fiberthread_sigreturn() __attribute__((visibility("hidden")));
extern const char fiberthread_sigreturn_end[] __attribute__((visibility("hidden")));
}

namespace fiberthread {
namespace signals {

namespace {

constexpr int kAutoDisarm = static_cast<int>(1u << 31);
#if defined(__x86_64__)
constexpr size_t kMinAlternate = 2048;  // the kernel's MINSIGSTKSZ
#else
constexpr size_t kMinAlternate = 5120;
#endif

stack_t& alternate() { return tls_current->alternate; }

bool within(const stack_t& s, uintptr_t sp) {
  auto low = reinterpret_cast<uintptr_t>(s.ss_sp);
  return sp > low && sp - low <= s.ss_size;
}

// As the kernel sees it: one that disarms itself never counts.
bool on_alternate(uintptr_t sp) { return !(alternate().ss_flags & kAutoDisarm) && within(alternate(), sp); }

// The lowest address that a frame may have below `sp`; 0 on a stack that we do not know.
uintptr_t lowest(const FiberRecord* me, uintptr_t sp) {
  auto low = reinterpret_cast<uintptr_t>(me->stack_low);
  if (sp > low && sp <= reinterpret_cast<uintptr_t>(me->stack_high)) return low;
  // It may have run out of its own stack.
  auto block = reinterpret_cast<uintptr_t>(me->block);
  if (block && !me->user_stack && sp > block && sp <= low) return low;
  return within(alternate(), sp) ? reinterpret_cast<uintptr_t>(alternate().ss_sp) : 0;
}

}  // namespace

char* other_stack(const Action& a, uintptr_t sp) {
  if (!(a.flags & SA_ONSTACK) || !alternate().ss_size || on_alternate(sp)) return nullptr;
  return static_cast<char*>(alternate().ss_sp) + alternate().ss_size;
}

char* stack_of_kernel_thread(FiberRecord* me, const Action& a, uintptr_t sp) {
  if (__builtin_expect(!tcb_go_found.load(std::memory_order_relaxed), 1)) return nullptr;
  if (!(a.flags & SA_ONSTACK) || me->alternate.ss_size || !me->bound.load(std::memory_order_relaxed)) return nullptr;
  stack_t ss = {};
  raw_syscall(SYS_sigaltstack, 0, arg(&ss));  // Go may have set its own by itself
  return ss.ss_flags & SS_DISABLE || within(ss, sp) ? nullptr : static_cast<char*>(ss.ss_sp) + ss.ss_size;
}

stack_t alternate_now() {
  stack_t s = alternate();
  if (!s.ss_size) s.ss_flags |= SS_DISABLE;  // of one that has never set any
  return s;
}

stack_t show_alternate() {
  stack_t s = alternate_now();
  if (s.ss_flags & kAutoDisarm) alternate() = {nullptr, SS_DISABLE, 0};
  return s;
}

void forget_alternate() {
  if (alternate().ss_size) alternate() = {nullptr, SS_DISABLE, 0};
}
bool on_alternate_now() { return tls_current && within(alternate(), reinterpret_cast<uintptr_t>(__builtin_frame_address(0))); }

int set_alternate(const stack_t& ss, uintptr_t sp) {
  if (on_alternate(sp)) return EPERM;
  int mode = ss.ss_flags & ~kAutoDisarm;
  if (mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0) return EINVAL;
  if (mode == SS_DISABLE) {
    alternate() = {nullptr, ss.ss_flags, 0};
    return 0;
  }
  bool same = ss.ss_sp == alternate().ss_sp && ss.ss_size == alternate().ss_size;
  if (!same && ss.ss_size < kMinAlternate) return ENOMEM;
  alternate() = ss;
  return 0;
}

bool frame_ends_at(uintptr_t pc) {
  return pc - reinterpret_cast<uintptr_t>(&fiberthread_sigreturn) <
         reinterpret_cast<uintptr_t>(fiberthread_sigreturn_end) - reinterpret_cast<uintptr_t>(&fiberthread_sigreturn);
}

bool frame_ending(const ucontext_t* uc) {
#if defined(__x86_64__)
  auto pc = static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RIP]);
#else
  auto pc = static_cast<uintptr_t>(uc->uc_mcontext.pc);
#endif
  return frame_ends_at(pc);
}

#if defined(__x86_64__)

static_assert(offsetof(Frame, context) == 8 && offsetof(Frame, info) == 312 && offsetof(Frame, busy) == 440);
static_assert(offsetof(ucontext_t, uc_mcontext) == 40 && offsetof(ucontext_t, uc_sigmask) == 296 &&
              offsetof(ucontext_t, uc_mcontext.gregs[REG_RSP]) == 160 && offsetof(ucontext_t, uc_mcontext.gregs[REG_RIP]) == 168 &&
              offsetof(ucontext_t, uc_mcontext.gregs[REG_EFL]) == 176 && offsetof(ucontext_t, uc_mcontext.fpregs) == 224);

namespace {

constexpr uintptr_t kRedZone = 128;

// What the kernel saves where fpregs points to: the processor's format of XSAVE, and in a part of it that the processor leaves
// to software what there is.
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

// A handler starts with everything initial, as in the kernel's own frames; but for protection keys, which it keeps.
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

uintptr_t stack_pointer(const ucontext_t* uc) { return static_cast<uintptr_t>(uc->uc_mcontext.gregs[REG_RSP]); }

bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during) {
  auto& regs = uc->uc_mcontext.gregs;
  uintptr_t sp = stack_pointer(uc);
  char* state = reinterpret_cast<char*>(uc->uc_mcontext.fpregs);
  size_t size = size_of(state);
  char* other = other_stack(a, sp);
  uintptr_t top = other ? reinterpret_cast<uintptr_t>(other) : sp - kRedZone;
  uintptr_t low = other ? reinterpret_cast<uintptr_t>(alternate().ss_sp) : lowest(me, sp);
  uintptr_t copy = (top - size) & ~uintptr_t{63};
  // The handler finds its return address where a call would have put it.
  uintptr_t at = ((copy - sizeof(Frame)) & ~uintptr_t{15}) - 8;
  if (at < low || copy > top) return false;
  memcpy(reinterpret_cast<char*>(copy), state, size);
  auto* f = reinterpret_cast<Frame*>(at);
  f->back = reinterpret_cast<void*>(&fiberthread_sigreturn);
  memcpy(&f->context, uc, sizeof f->context);
  f->uc()->uc_mcontext.fpregs = reinterpret_cast<fpregset_t>(copy);
  if (!me->kernel) f->uc()->uc_stack = show_alternate();
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

void frame_end_anew(ucontext_t* uc) { uc->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&fiberthread_sigreturn); }

void frame_leaving(FiberRecord* me, Frame* f, uint32_t* busy) {
  *busy = f->busy;
  if (!f->left && me->kernel) raw_syscall(SYS_sigaltstack, arg(&f->uc()->uc_stack), 0);  // as the kernel's sigreturn does
  else if (!f->left) set_alternate(f->uc()->uc_stack, stack_pointer(f->uc()));
  f->left = true;  // what iretq takes comes over it
  f->uc()->uc_flags = f->flags;
  f->uc()->uc_link = nullptr;
  state_of(me).restarts = f->restarts;
}

void frame_left(FiberRecord*, Frame*) {}

#else

// The kernel's own frame, with our words where it has none to say.
static_assert(offsetof(ucontext_t, uc_mcontext.regs) == 184 && offsetof(ucontext_t, uc_mcontext.sp) == 432 &&
              offsetof(ucontext_t, uc_mcontext.pc) == 440 && offsetof(Frame, context) == 128);

namespace {

struct Words {
  uint32_t busy;
  bool left, restarts;
  bool injected;  // by frame_inject(): nothing is to be as it was but the registers and the mask
};
static_assert(sizeof(Words) <= 16 && offsetof(ucontext_t, uc_stack) == 16);
Words& words_of(Frame* f) { return *reinterpret_cast<Words*>(f->uc()); }

struct FrameRecord {
  uint64_t fp, lr;
};

// Copies what the kernel has saved to below `top`, and lets it return to `code` there, as if it had called that. Null, and nothing
// done, if that would be below `low`.
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

// The scheduler has looked for room.
void frame_inject(void* context, void (*fn)()) {
  auto* uc = static_cast<ucontext_t*>(context);
  Frame* f = call_in_copy(uc, uc->uc_mcontext.sp, 0, reinterpret_cast<uint64_t>(fn));
  // Not what the kernel has: libc's own changes of the mask, as in posix_spawn(), do not move with the fiber.
  set_words(f->uc()->uc_sigmask, mask_of(tls_current));
  words_of(f) = {0, false, false, true};
}

uintptr_t stack_pointer(const ucontext_t* uc) { return uc->uc_mcontext.sp; }

bool frame_enter(FiberRecord* me, const Action& a, int sig, const siginfo_t& info, ucontext_t* uc, uint32_t busy, uint64_t before,
                 uint64_t during) {
  auto& m = uc->uc_mcontext;
  char* other = other_stack(a, m.sp);
  uintptr_t top = other ? reinterpret_cast<uintptr_t>(other) : m.sp;
  uintptr_t low = other ? reinterpret_cast<uintptr_t>(alternate().ss_sp) : lowest(me, m.sp);
  Frame* f = call_in_copy(uc, top, low, reinterpret_cast<uint64_t>(a.handler));
  if (!f) return false;
  if (!me->kernel) f->uc()->uc_stack = show_alternate();
  set_words(f->uc()->uc_sigmask, before);
  f->info = info;
  words_of(f) = {busy, false, state_of(me).restarts, false};

  m.regs[0] = static_cast<uint64_t>(sig);
  m.regs[1] = reinterpret_cast<uint64_t>(&f->info);
  m.regs[2] = reinterpret_cast<uint64_t>(f->uc());
  set_words(uc->uc_sigmask, during);
  return true;
}

void frame_end_anew(ucontext_t* uc) { uc->uc_mcontext.pc = reinterpret_cast<uint64_t>(&fiberthread_sigreturn); }

void frame_leaving(FiberRecord* me, Frame* f, uint32_t* busy) {
  Words& w = words_of(f);
  *busy = w.busy;
  if (w.injected) return;
  if (!w.left && !me->kernel) set_alternate(f->uc()->uc_stack, stack_pointer(f->uc()));
  w.left = true;
  state_of(me).restarts = w.restarts;
}

// The kernel takes the rest from here: what is the worker's must be that of the present one.
void frame_left(FiberRecord* me, Frame* f) {
  if (!me->kernel) f->uc()->uc_stack = {me->worker->signal_stack, 0, kSignalStack};
}

#endif

}  // namespace signals
}  // namespace fiberthread

using namespace fiberthread;
using namespace fiberthread::signals;

FIBERTHREAD_EXPORT int sigaltstack(const stack_t* ss, stack_t* old) noexcept {
  if (!ours()) {
    if (ss && sched_started() && !in_vfork_child()) self();  // its handlers want to know who it is
    return REAL(sigaltstack)(ss, old);
  }
  stack_t wanted, before = alternate();
  if (ss && !copy_user(&wanted, ss)) return static_cast<int>(with_errno(-EFAULT));
  auto sp = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  before.ss_flags = (before.ss_size ? (on_alternate(sp) ? SS_ONSTACK : 0) : SS_DISABLE) | (before.ss_flags & kAutoDisarm);
  if (ss)
    if (int e = set_alternate(wanted, sp)) return static_cast<int>(with_errno(-e));
  if (old && !copy_user(old, &before)) return static_cast<int>(with_errno(-EFAULT));
  return 0;
}
