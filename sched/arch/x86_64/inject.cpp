// SPDX-License-Identifier: MIT
#include "sched/arch/inject.h"

#include <ucontext.h>

#include <cstddef>
#include <cstring>

#include "sched/arch/x86_64/features.h"

extern "C" {
// trampoline.S
void __restore_rt() __attribute__((visibility("hidden")));
void fiberthread_trampoline() __attribute__((visibility("hidden")));
extern const char fiberthread_trampoline_end[] __attribute__((visibility("hidden")));
// The trampoline reads these: the components that it saves, and three sizes of their area. The first is for nothing beyond AVX in use, the
// second for no AMX, the third for all.
extern uint32_t fiberthread_xsave_mask __attribute__((visibility("hidden")));
extern uint32_t fiberthread_xsave_sizes[3] __attribute__((visibility("hidden")));
// What it saves them by, a value of SaveBy.
extern uint32_t fiberthread_save_by __attribute__((visibility("hidden")));
uint32_t fiberthread_save_by = 0;
uint32_t fiberthread_xsave_mask = 0;
uint32_t fiberthread_xsave_sizes[3] = {};
}

namespace fiberthread {

void (*const kernel_restorer)() = __restore_rt;

namespace {

// ---- register state ----

enum SaveBy : uint32_t { kXsavec, kXsave, kFxsave };

constexpr uint32_t kX87Sse = 0x3, kAvx = 0x4, kPkru = 0x200, kAmx = 0x60000;
constexpr uint64_t kKnown = 0xe02e7;    // x87, SSE, AVX, AVX-512, PKRU, AMX, APX: all that a program can use
constexpr uint64_t kMpx = 0x18;         // no longer used by any kernel
constexpr uint32_t kXsaveLegacy = 576;  // fixed part and header

// Bytes of each component (Intel's manual, volume 1, chapter 13). Linux turns them all off on a processor that has others.
constexpr struct {
  uint32_t component, size;
} kSizes[] = {{1 << 2, 256}, {1 << 5, 64}, {1 << 6, 512}, {1 << 7, 1024}, {1 << 9, 8}, {1 << 17, 64}, {1 << 18, 8192}, {1 << 19, 128}};

// Returns the most that the area takes: the processor may align each component to 64 bytes.
uint32_t area_size(uint32_t components) {
  uint32_t size = kXsaveLegacy;
  for (auto& s : kSizes)
    if (components & s.component) size += (s.size + 63) & ~63u;
  return size;
}

// Returns how many bytes the trampoline's area will take. It looks at what the kernel saved of the interrupted code.
uint32_t area_needed(const ucontext_t* uc) {
  constexpr size_t kMagicAt = 464, kXstateBvAt = 512;
  constexpr uint32_t kMagic = 0x46505853;  // Linux' FP_XSTATE_MAGIC1
  auto* fp = reinterpret_cast<const char*>(uc->uc_mcontext.fpregs);
  uint32_t magic, in_use;
  if (fiberthread_save_by != kXsavec) return fiberthread_xsave_sizes[2];
  if (!fp) return fiberthread_xsave_sizes[2];
  memcpy(&magic, fp + kMagicAt, sizeof magic);
  if (magic != kMagic) return fiberthread_xsave_sizes[2];
  memcpy(&in_use, fp + kXstateBvAt, sizeof in_use);
  in_use &= fiberthread_xsave_mask;
  if (in_use & kAmx) return fiberthread_xsave_sizes[2];
  return fiberthread_xsave_sizes[in_use & ~(kX87Sse | kAvx | kPkru) ? 1 : 0];
}

// ---- injection ----

constexpr uintptr_t kRedZone = 128;
constexpr uintptr_t kWords = 2 * 8;            // rip and the function
constexpr uintptr_t kRegisters = 16 * 8 + 64;  // registers that the trampoline pushes, and the gap

}  // namespace

bool inject_init() {
  constexpr unsigned kOsxsave = 1u << 27;
  if (!(features(LibcLeaf::k1, 1, 0).ecx & kOsxsave)) {
    fiberthread_save_by = kFxsave;
    fiberthread_xsave_mask = kX87Sse;
    fiberthread_xsave_sizes[2] = kXsaveLegacy;
    return true;
  }
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  uint64_t xcr0 = low | uint64_t{high} << 32;
  if (xcr0 & ~(kKnown | kMpx)) return false;  // state that we do not know how to keep
  uint32_t mask = xcr0 & kKnown;
  fiberthread_xsave_sizes[0] = area_size(mask & (kX87Sse | kAvx | kPkru));
  fiberthread_xsave_sizes[1] = area_size(mask & ~kAmx);
  fiberthread_xsave_sizes[2] = area_size(mask);
  fiberthread_xsave_mask = mask;
  constexpr unsigned kHasXsavec = 2, kHasXgetbv1 = 4, kBoth = kHasXsavec | kHasXgetbv1;
  if ((features(LibcLeaf::k13With1, 13, 1).eax & kBoth) == kBoth) return true;
  fiberthread_save_by = kXsave;
  unsigned size, c, d;
  if (!__get_cpuid_count(13, 0, &low, &size, &c, &d)) return false;  // what all that is on takes
  fiberthread_xsave_sizes[2] = (size + 63) & ~63u;                   // the area is aligned
  return true;
}

uintptr_t inject_room(ucontext_t* uc) { return kRedZone + kWords + kRegisters + area_needed(uc); }

void inject(ucontext_t* uc, void (*fn)()) {
  auto& regs = uc->uc_mcontext.gregs;
  auto* words = reinterpret_cast<uint64_t*>(regs[REG_RSP] - kRedZone - kWords);
  words[0] = reinterpret_cast<uint64_t>(fn);
  words[1] = regs[REG_RIP];
  regs[REG_RSP] = reinterpret_cast<greg_t>(words);
  regs[REG_RIP] = reinterpret_cast<greg_t>(&fiberthread_trampoline);
}

bool injecting(uintptr_t pc) {
  auto low = reinterpret_cast<uintptr_t>(fiberthread_trampoline), high = reinterpret_cast<uintptr_t>(fiberthread_trampoline_end);
  return pc - low < high - low;
}

}  // namespace fiberthread
