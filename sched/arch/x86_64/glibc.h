// SPDX-License-Identifier: MIT
// x86-64: TLS as this processor's ELF ABI and libc lay it out, and the look of some instructions (sched/glibc/processor.h, which
// alone includes this).
//
//   static TLS | struct pthread
//   The thread pointer points to struct pthread, which has the dtv's address in it (variant II).
#pragma once
#include <string.h>

#include "sched/arch/arch.h"
#include "sched/glibc/layout.h"

namespace fiberthread::glibc {

constexpr size_t kTcbAlign = 64;
constexpr long kRseqSignature = 0x53053053;
constexpr bool kPlaceTellsSize = true;

inline char* thread_pointer_of(void* pd) { return static_cast<char*>(pd); }
inline size_t dtv_limit(size_t sizeof_pthread) { return sizeof_pthread; }
inline char* place(char* top) { return reinterpret_cast<char*>(align_down(top - layout.sizeof_pthread, layout.tls_align)); }
// tls_size counts struct pthread here.
inline size_t tcb_and_tls_size() { return layout.tls_size; }
inline char* low_end(char* top) {
  return place(top) + layout.sizeof_pthread - ((layout.tls_size + layout.tls_align - 1) & ~(layout.tls_align - 1));
}
inline bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset) {
  if (l_tls_offset <= 0) return false;  // it has none yet, or the loader forces it to be dynamic
  offset = -l_tls_offset;
  return true;
}

inline uintptr_t return_address(const ucontext_t* uc) { return *reinterpret_cast<uintptr_t*>(uc->uc_mcontext.gregs[REG_RSP]); }
inline bool is_system_call(uintptr_t at) { return memcmp(reinterpret_cast<void*>(at), "\x0f\x05", kSystemCallSize) == 0; }
inline uintptr_t called_before(uintptr_t back) {
  constexpr size_t kSize = 5;
  auto* call = reinterpret_cast<const unsigned char*>(back - kSize);
  int32_t distance;
  if (!readable(call) || *call != 0xe8) return 0;
  memcpy(&distance, call + 1, sizeof distance);
  return back + static_cast<uintptr_t>(static_cast<intptr_t>(distance));
}

}  // namespace fiberthread::glibc
