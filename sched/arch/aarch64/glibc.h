// SPDX-License-Identifier: MIT
// AArch64: TLS as this processor's ELF ABI and libc lay it out, and the look of some instructions (sched/glibc/processor.h, which
// alone includes this).
//
//   struct pthread | two words | static TLS
//   The thread pointer points behind struct pthread. The first of the two words is the dtv's address (variant I).
#pragma once
#include "sched/arch/arch.h"
#include "sched/glibc/layout.h"

namespace fiberthread::glibc {

constexpr size_t kTcbAlign = 16;
constexpr long kRseqSignature = 0xd428bc00;
constexpr bool kPlaceTellsSize = false;

inline char* thread_pointer_of(void* pd) { return static_cast<char*>(pd) + layout.sizeof_pthread; }
inline size_t dtv_limit(size_t sizeof_pthread) { return sizeof_pthread + 2 * sizeof(void*); }
inline char* place(char* top) {
  return reinterpret_cast<char*>(align_down(top - layout.tls_size, layout.tls_align)) - layout.sizeof_pthread;
}
inline size_t tcb_and_tls_size() { return layout.tls_size + layout.sizeof_pthread; }
inline char* low_end(char* top) { return place(top); }
inline bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset) {
  if (l_tls_offset <= 0) return false;  // it has none yet, or the loader forces it to be dynamic
  offset = l_tls_offset;
  return true;
}
inline uintptr_t return_address(const ucontext_t* uc) { return uc->uc_mcontext.regs[30]; }
inline bool is_system_call(uintptr_t at) { return *reinterpret_cast<uint32_t*>(at) == 0xd4000001; }  // svc #0
inline uintptr_t called_before(uintptr_t back) {
  auto* at = reinterpret_cast<const uint32_t*>(back) - 1;
  if (!readable(at) || *at >> 26 != 0x25) return 0;  // bl
  return reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(static_cast<intptr_t>(static_cast<int32_t>(*at << 6) >> 4));
}

}  // namespace fiberthread::glibc
