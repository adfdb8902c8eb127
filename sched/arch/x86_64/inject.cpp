// SPDX-License-Identifier: MIT
#include "sched/arch/inject.h"

#include <cpuid.h>
#include <ucontext.h>

#include <cstddef>
#include <cstring>

extern "C" {
// trampoline.S
void __restore_rt() __attribute__((visibility("hidden")));
void fiberthread_trampoline() __attribute__((visibility("hidden")));
extern const char fiberthread_trampoline_end[] __attribute__((visibility("hidden")));
// The trampoline reads these: the components that it saves, and three sizes of their area. The first is for nothing beyond AVX in use, the
// second for no AMX, the third for all.
extern uint32_t fiberthread_xsave_mask __attribute__((visibility("hidden")));
extern uint32_t fiberthread_xsave_sizes[3] __attribute__((visibility("hidden")));
uint32_t fiberthread_xsave_mask = 0;
uint32_t fiberthread_xsave_sizes[3] = {};
}

namespace fiberthread {

void (*const kernel_restorer)() = __restore_rt;

namespace {

// ---- register state ----

constexpr uint32_t kX87Sse = 0x3, kAvx = 0x4, kPkru = 0x200, kAmx = 0x60000;
constexpr uint64_t kKnown = 0xe02e7;    // x87, SSE, AVX, AVX-512, PKRU, AMX, APX: all that a program can use
constexpr uint64_t kMpx = 0x18;         // no longer used by any kernel
constexpr uint32_t kXsaveLegacy = 576;  // fixed part and header

uint32_t component_size[32];
bool component_aligned[32];

uint32_t area_size(uint32_t components) {
  uint32_t size = kXsaveLegacy;
  for (int i = 2; i < 32; i++) {
    if (!(components >> i & 1)) continue;
    if (component_aligned[i]) size = (size + 63) & ~63u;
    size += component_size[i];
  }
  return (size + 63) & ~63u;
}

// Returns how many bytes the trampoline's area will take. It looks at what the kernel saved of the interrupted code.
uint32_t area_needed(const ucontext_t* uc) {
  constexpr size_t kMagicAt = 464, kXstateBvAt = 512;
  constexpr uint32_t kMagic = 0x46505853;  // Linux' FP_XSTATE_MAGIC1
  auto* fp = reinterpret_cast<const char*>(uc->uc_mcontext.fpregs);
  uint32_t magic, in_use;
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
  unsigned a, b, c, d;
  constexpr unsigned kOsxsave = 1u << 27, kXsavec = 2, kXgetbv1 = 4, kAligned = 2;
  if (__get_cpuid_max(0, nullptr) < 13) return false;  // few questions: each cpuid takes microseconds under a hypervisor
  __cpuid(1, a, b, c, d);
  if (!(c & kOsxsave)) return false;
  __cpuid_count(13, 1, a, b, c, d);
  if (!(a & kXsavec) || !(a & kXgetbv1)) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  uint64_t xcr0 = low | uint64_t{high} << 32;
  if (xcr0 & ~(kKnown | kMpx)) return false;  // state that we do not know how to keep
  uint32_t mask = xcr0 & kKnown;
  for (int i = 2; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    __cpuid_count(13, i, a, b, c, d);
    if (a == 0) return false;
    component_size[i] = a;
    component_aligned[i] = c & kAligned;
  }
  fiberthread_xsave_sizes[0] = area_size(mask & (kX87Sse | kAvx | kPkru));
  fiberthread_xsave_sizes[1] = area_size(mask & ~kAmx);
  fiberthread_xsave_sizes[2] = area_size(mask);
  fiberthread_xsave_mask = mask;
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
