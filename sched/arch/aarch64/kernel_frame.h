// SPDX-License-Identifier: MIT
// What the AArch64 kernel saves of interrupted code, and where. For code that continues from a copy of it.
//
// Registers without a field in the ucontext are saved in records at its end, each with its size. Records without room in the ucontext stand
// behind it, and a record inside (SavedExtra) points there.
#pragma once
#include <sys/auxv.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fiberthread {

struct SavedRecord {
  uint32_t magic, size;
};
struct SavedExtra {
  SavedRecord head;
  uint64_t data;
  uint32_t size;
};
constexpr uint32_t kSavedExtra = 0x45585401, kSavedSve = 0x53564501, kSavedTpidr2 = 0x54504902, kSavedZa = 0x54366345,
                   kSavedZt = 0x5a544e01;

// Calls function(record) for each record in the ucontext. Returns where the records end.
template <class Function>
char* for_saved_records(ucontext_t* uc, Function function) {
  auto* p = reinterpret_cast<char*>(uc->uc_mcontext.__reserved);
  for (char* end = p + sizeof uc->uc_mcontext.__reserved; p + sizeof(SavedRecord) <= end;) {
    auto* r = reinterpret_cast<SavedRecord*>(p);
    size_t size = r->size;  // read first, because function() may move the record
    if (!r->magic || size < sizeof *r || size > static_cast<size_t>(end - p)) break;
    function(r);
    p += size;
  }
  return p;
}

inline SavedExtra* saved_extra(ucontext_t* uc) {
  SavedExtra* extra = nullptr;
  for_saved_records(uc, [&](SavedRecord* r) {
    if (r->magic == kSavedExtra) extra = reinterpret_cast<SavedExtra*>(r);
  });
  return extra;
}

// Returns how many bytes there are from the ucontext to the end of the last record.
inline size_t saved_size(ucontext_t* uc) {
  SavedExtra* extra = saved_extra(uc);
  return extra ? extra->data + extra->size - reinterpret_cast<uintptr_t>(uc) : sizeof *uc;
}

// Copies all that the kernel has saved to `to`, a multiple of 16.
inline void copy_saved(ucontext_t* to, ucontext_t* from) {
  memcpy(static_cast<void*>(to), from, saved_size(from));
  if (SavedExtra* extra = saved_extra(to)) extra->data += reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
}

// Takes the records of scalable state out of `uc`. Called in a handler of ours that makes other code go on with `uc`. That code must begin
// as the kernel's handlers do, outside of streaming mode and without ZA, or its first vector instruction would fault. State that the kernel
// does not restore stays as the kernel has set it for our handler.
inline void drop_scalable_state(ucontext_t* uc) {
  auto* to = reinterpret_cast<char*>(uc->uc_mcontext.__reserved);
  bool tpidr2 = false;
  for_saved_records(uc, [&](SavedRecord* r) {
    uint32_t magic = r->magic, size = r->size;
    tpidr2 |= magic == kSavedTpidr2;
    if (magic == kSavedExtra || magic == kSavedSve || magic == kSavedTpidr2 || magic == kSavedZa || magic == kSavedZt) return;
    memmove(to, r, size);
    to += size;
  });
  memset(to, 0, sizeof(SavedRecord));
  // TPIDR2 says where a lazily saved ZA goes. Kernels before 6.16 leave it as it was, which has no meaning without ZA.
  if (tpidr2) asm volatile("msr s3_3_c13_c0_5, xzr");
}

}  // namespace fiberthread
