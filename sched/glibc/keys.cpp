// SPDX-License-Identifier: MIT
#include "sched/glibc/keys.h"

#include <limits.h>
#include <pthread.h>

#include "sched/glibc/layout.h"

namespace fiberthread {
namespace glibc {

// The byte stands behind the table of blocks. Without it, the end of each thread would look at all values.
void find_specific_used(char* pd) {
  pthread_key_t key;
  char* byte = pd + layout.specific + layout.level1_count * sizeof(char*);
  if (byte >= pd + layout.sizeof_pthread || *byte != 0 || pthread_key_create(&key, nullptr) != 0) return;
  // A value of a key above the first ones would leave the model with an allocated block, which would be copied for all threads.
  bool set = key < layout.level2_count && pthread_setspecific(key, pd) == 0 && *byte == 1;
  *byte = 0;
  set = set && pthread_setspecific(key, nullptr) == 0 && *byte == 0;
  set = set && pthread_setspecific(key, pd) == 0 && *byte == 1;
  if (key < layout.level2_count) pthread_setspecific(key, nullptr);
  pthread_key_delete(key);
  if (!set) return;
  *byte = 0;
  layout.specific_used = static_cast<uint32_t>(byte - pd);
}

// Makes two new keys, so that the distance of their entries counts as well. libc's free keys come back in order, so the program sees no
// difference.
bool keys_are_right(char* pd) {
  pthread_key_t keys[2];
  auto destructor = +[](void*) {};
  int made = 0;
  bool ok = true;
  for (; made < 2 && pthread_key_create(&keys[made], destructor) == 0; made++) {
    pthread_key_t key = keys[made];
    char* entry = layout.keys + key * layout.sizeof_key_struct;
    uintptr_t seq, set, data_seq;
    ok = ok && read_word(entry + layout.key_destr, set) && set == reinterpret_cast<uintptr_t>(destructor);
    // A value of a key above the first ones would be in an allocated block of the model. The first ones are the program's then, and one
    // of them has a value of ours for a moment.
    if (key >= layout.level2_count) key = made;
    void* old = pthread_getspecific(key);
    char* block = nullptr;
    ok = ok && pthread_setspecific(key, &keys[made]) == 0 && read_word(pd + layout.specific, block) &&
         read_word(layout.keys + key * layout.sizeof_key_struct + layout.key_seq, seq);
    char* data = block + layout.level2_data + key * layout.sizeof_key_data;
    ok = ok && read_word(data + layout.key_data_data, set) && set == reinterpret_cast<uintptr_t>(&keys[made]) &&
         read_word(data + layout.key_data_seq, data_seq) && data_seq == seq;
    pthread_setspecific(key, old);
  }
  while (made > 0) pthread_key_delete(keys[--made]);
  if (layout.specific_used) at<uint8_t>(pd, layout.specific_used) = 0;
  return ok;
}

// The model's values are its own. Where pthread_create is a sanitizer's, one of them is the thread's whole state to the sanitizer.
void drop_key_values(unsigned char* copy) {
  for (uint32_t i = 0; i < layout.level1_count; i++) {
    auto& block = at<char*>(copy, layout.specific + i * sizeof(char*));
    auto offset = reinterpret_cast<uintptr_t>(block);  // of the first block
    if (i > 0 || offset == 0 || offset >= layout.sizeof_pthread) block = nullptr;
    else memset(copy + offset + layout.level2_data, 0, layout.level2_count * layout.sizeof_key_data);
  }
}

namespace {

// Returns true if it has called a destructor, which may have set values again.
bool run_round(char* pd) {
  bool called = false;
  for (uint32_t i = 0; i < layout.level1_count; i++) {
    char* block = at<char*>(pd, layout.specific + i * sizeof(char*));
    if (!block) continue;
    for (size_t j = 0; j < layout.level2_count; j++) {
      char* data = block + layout.level2_data + j * layout.sizeof_key_data;
      void*& value = at<void*>(data, layout.key_data_data);
      if (!value) continue;
      void* v = value;
      value = nullptr;
      char* key = layout.keys + (i * layout.level2_count + j) * layout.sizeof_key_struct;
      // A value that was set under a former use of the key's number is not this key's.
      if (at<uintptr_t>(key, layout.key_seq) != at<uintptr_t>(data, layout.key_data_seq)) continue;
      if (auto* destructor = at<void (*)(void*)>(key, layout.key_destr)) {
        destructor(v);
        called = true;
      }
    }
  }
  return called;
}

}  // namespace
}  // namespace glibc

void tcb_run_key_destructors() {
  using namespace glibc;
  char* pd = reinterpret_cast<char*>(pthread_self());
  for (int round = 0; round < PTHREAD_DESTRUCTOR_ITERATIONS; round++) {
    if (layout.specific_used) {
      auto& used = at<uint8_t>(pd, layout.specific_used);
      if (!used) return;
      used = 0;
    }
    if (!run_round(pd)) return;
  }
  for (uint32_t i = 0; i < layout.level1_count; i++)
    if (char* block = at<char*>(pd, layout.specific + i * sizeof(char*)))
      for (size_t j = 0; j < layout.level2_count; j++)
        at<void*>(block + layout.level2_data + j * layout.sizeof_key_data, layout.key_data_data) = nullptr;
}

}  // namespace fiberthread
