// SPDX-License-Identifier: MIT
// For this folder only: where this libc keeps what fibers need, and how memory is read that may not be there.
//
// No offset in libc's structures is typed in. read_descriptors() takes offsets from the descriptors that libc has for debuggers
// (_thread_db_*). The model thread finds the others (model.h).
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <atomic>

#include "sched/syscall.h"

namespace fiberthread::glibc {

constexpr size_t kMaxPthread = 16384;  // the greatest struct pthread that is served

// What has been learnt about this libc. It is written before the first fiber begins, and is constant from then on.
struct Layout {
  size_t sizeof_pthread, tls_size, tls_align;
  // Offsets in struct pthread.
  uint32_t tid, list, cancelhandling, specific, dtv;
  uint32_t stackblock, stackblock_size, cleanup_jmp_buf, cleanup, robust_head, res;
  uint32_t specific_used;  // a byte: some key may have a value; 0: it was not found
  uint32_t random;         // the thread's own state for the kernel's random numbers (2.41); 0: this libc has none
  // The nodes of the list of threads.
  uint32_t list_next, list_prev;
  // The values of keys, and the keys themselves.
  uint32_t level2_data, key_data_seq, key_data_data, sizeof_key_data, level2_count, level1_count;
  uint32_t key_seq, key_destr, sizeof_key_struct, key_count;
  // The dtv, and the loader's table of modules with TLS.
  uint32_t dtv_entry, dtv_val;
  uint32_t slotinfo_len, slotinfo_next, slotinfo_array, slotinfo_map, sizeof_slotinfo, map_offset, map_modid;
  char* rtld_global;
  char* stack_user;             // the head of the list of threads with stacks of the program
  std::atomic<int>* list_lock;  // libc's own low-level lock over its lists of stacks
  char* slotinfo_list;          // points to the first part of the table
  char* keys;                   // __pthread_keys
  ptrdiff_t resp;               // the TLS variable __resp, from the thread pointer
};
extern Layout layout __attribute__((visibility("hidden")));

// libc's own functions, which read_descriptors() finds.
extern void* (*dl_allocate_tls)(void*)__attribute__((visibility("hidden")));
extern void (*dl_deallocate_tls)(void*, bool) __attribute__((visibility("hidden")));
extern void (*call_tls_dtors)() __attribute__((visibility("hidden")));
extern void (*ctype_init)() __attribute__((visibility("hidden")));

// Reads all descriptors into `layout`. Each must fit into the structure that it belongs to. Returns null, or a literal that says what
// is wrong. It does not know yet whether the descriptors are true: self_check.cpp looks at living threads for that.
const char* read_descriptors();

template <class T>
T& at(void* base, size_t offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

// Reads a word of a structure that may not be where libc says. Returns false if no word can be read there.
template <class T>
bool read_word(const char* p, T& value) {
  static_assert(sizeof(T) == sizeof(void*));
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0 || !readable(p)) return false;
  memcpy(&value, p, sizeof value);
  return true;
}

}  // namespace fiberthread::glibc
