// For this room only: what differs from processor to processor. The ELF ABI has two variants of TLS.
//
//   x86-64    static TLS | struct pthread
//             The thread pointer points to struct pthread, which has the dtv's address in it.
//   AArch64   struct pthread | two words | static TLS
//             The thread pointer points behind struct pthread. The first of the two words is the dtv's address.
#pragma once
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
// Turns a link_map's l_tls_offset into an offset from the thread pointer. Returns false for a module without static TLS.
inline bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset) {
  if (l_tls_offset <= 0) return false;  // it has none yet, or the loader forces it to be dynamic
  offset = -l_tls_offset;
  return true;
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
inline bool static_tls_offset(ptrdiff_t l_tls_offset, ptrdiff_t& offset) {
  if (l_tls_offset <= 0) return false;  // it has none yet, or the loader forces it to be dynamic
  offset = l_tls_offset;
  return true;
}

#else
#error "Add the TLS variant of this processor."
#endif

}  // namespace fiberthread::glibc
