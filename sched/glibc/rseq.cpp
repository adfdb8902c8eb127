// SPDX-License-Identifier: MIT
#include "sched/glibc/rseq.h"

#include <dlfcn.h>
#include <errno.h>

#include "sched/arch/arch.h"
#include "sched/glibc/processor.h"

namespace fiberthread {
namespace glibc {
namespace {

// libc's __rseq_offset and __rseq_size, which 2.34 lacks. A reference to them, even a weak one, would need the loader of 2.35.
const ptrdiff_t* rseq_offset;
const unsigned* rseq_size;

// __rseq_size is the size of the features in use from 2.40 on, and no libc has less room than 32 bytes.
size_t rseq_bytes() { return *rseq_size > 32 ? *rseq_size : 32; }

// The beginning of an area, as the kernel has it.
struct RseqArea {
  uint32_t cpu_id_start;
  int32_t cpu_id;  // negative: the area is not registered
};

RseqArea* rseq_area(char* tp) { return rseq_offset && *rseq_offset ? &at<RseqArea>(tp, *rseq_offset) : nullptr; }

}  // namespace

void find_rseq() {
  rseq_size = static_cast<const unsigned*>(dlvsym(RTLD_DEFAULT, "__rseq_size", "GLIBC_2.35"));
  if (rseq_size) rseq_offset = static_cast<const ptrdiff_t*>(dlvsym(RTLD_DEFAULT, "__rseq_offset", "GLIBC_2.35"));
}

bool rseq_area_is_within(char* tp, const char* low, const char* high) {
  if (!rseq_offset) return true;
  auto area = reinterpret_cast<uintptr_t>(tp) + static_cast<uintptr_t>(*rseq_offset);
  auto bottom = reinterpret_cast<uintptr_t>(low), top = reinterpret_cast<uintptr_t>(high);
  return area >= bottom && area <= top && rseq_bytes() <= top - area;
}

bool in_rseq_area(char* tp, const char* p) { return rseq_offset && p >= tp + *rseq_offset && p < tp + *rseq_offset + rseq_bytes(); }

// libc writes the same when the kernel refuses an area. The mark is written even if no thread of the process has its area registered,
// because a thread that libc makes with this area would take a 0 for a registration.
void rseq_is_not_registered(char* tp) {
  RseqArea* area = rseq_area(tp);
  if (!area) return;
  memset(area, 0, rseq_bytes());
  area->cpu_id = -2;
}

}  // namespace glibc

bool tcb_adopt_main() {
  using namespace glibc;
  char* tp = static_cast<char*>(thread_pointer());
  RseqArea* area = rseq_area(tp);
  if (!area || __atomic_load_n(&area->cpu_id, __ATOMIC_RELAXED) < 0) return true;
  constexpr long kUnregister = 1, kMost = 1024;
  // The kernel wants the length that libc registered, and libc does not tell it. It is 32, or more where libc (2.41) goes by the size of
  // the kernel's features. So each length is tried.
  long r = -EINVAL;
  for (long length = 32; r == -EINVAL && length <= kMost; length++)
    r = raw_syscall(SYS_rseq, arg(area), length, kUnregister, kRseqSignature);
  if (r != 0) return false;
  rseq_is_not_registered(tp);
  return true;
}

}  // namespace fiberthread
