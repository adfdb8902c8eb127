// SPDX-License-Identifier: MIT
// For this folder only: what differs from processor to processor. That is the look of some instructions, and TLS, of which the ELF ABI has
// two variants.
//
//   x86-64    static TLS | struct pthread
//             The thread pointer points to struct pthread, which has the dtv's address in it.
//   AArch64   struct pthread | two words | static TLS
//             The thread pointer points behind struct pthread. The first of the two words is the dtv's address.
#pragma once
#include <ucontext.h>

#include "sched/arch/arch.h"
#include "sched/glibc/layout.h"

namespace fiberthread::glibc {

inline uintptr_t align_down(char* p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) & ~(alignment - 1); }

#if defined(__x86_64__)

constexpr size_t kTcbAlign = 64;
constexpr long kRseqSignature = 0x53053053;
// A wrong size of struct pthread shows in where libc places it, not in the thread pointer.
constexpr bool kPlaceTellsSize = true;

inline char* thread_pointer_of(void* pd) { return static_cast<char*>(pd); }
// The greatest offset that the word with the dtv's address may end at.
inline size_t dtv_limit(size_t sizeof_pthread) { return sizeof_pthread; }
// Where libc places struct pthread, if TCB and static TLS are to end at `top`.
inline char* place(char* top) { return reinterpret_cast<char*>(align_down(top - layout.sizeof_pthread, layout.tls_align)); }
// tls_size counts struct pthread here.
inline size_t tcb_and_tls_size() { return layout.tls_size; }
// The lowest address that struct pthread and static TLS take then.
inline char* low_end(char* top) {
  return place(top) + layout.sizeof_pthread - ((layout.tls_size + layout.tls_align - 1) & ~(layout.tls_align - 1));
}
// Turns a link_map's l_tls_offset into an offset from the thread pointer. Returns false for a module without static TLS.
inline bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset) {
  if (l_tls_offset <= 0) return false;  // it has none yet, or the loader forces it to be dynamic
  offset = -l_tls_offset;
  return true;
}

// The return address of an interrupted function that has pushed nothing yet.
inline uintptr_t return_address(const ucontext_t* uc) { return *reinterpret_cast<uintptr_t*>(uc->uc_mcontext.gregs[REG_RSP]); }
inline bool is_system_call(uintptr_t at) { return memcmp(reinterpret_cast<void*>(at), "\x0f\x05", kSystemCallSize) == 0; }
// Returns the address that the direct call before `back` calls, or 0 if there is no such call.
inline uintptr_t called_before(uintptr_t back) {
  constexpr size_t kSize = 5;
  auto* call = reinterpret_cast<const unsigned char*>(back - kSize);
  int32_t distance;
  if (!readable(call) || *call != 0xe8) return 0;
  memcpy(&distance, call + 1, sizeof distance);
  return back + static_cast<uintptr_t>(static_cast<intptr_t>(distance));
}

#elif defined(__aarch64__)

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

#else
#error "Add the TLS variant of this processor."
#endif

}  // namespace fiberthread::glibc
