// SPDX-License-Identifier: MIT
#include "sched/glibc/layout.h"

#include <dlfcn.h>
#include <limits.h>

#include "sched/arch/arch.h"
#include "sched/glibc/processor.h"

namespace fiberthread::glibc {

Layout layout;
void* (*dl_allocate_tls)(void*);
void (*dl_deallocate_tls)(void*, bool);
void (*call_tls_dtors)();
void (*ctype_init)();

namespace {

constexpr uint32_t kWordBits = 8 * sizeof(void*);
constexpr uint32_t kMaxElement = 256, kMaxLoader = 65536;  // far beyond what any libc has

// One field as libc's descriptors tell it.
struct Field {
  uint32_t bits, count, offset;
};

// Parts of the descriptors that only the checks need.
struct Read {
  uint32_t stack_user, slotinfo, slotinfo_bits;
  uint32_t specific_bits, level2_bits, level2_size, key_bits, key_offset;
  uint32_t dtv_bits, dtv_offset;
};

void* private_symbol(const char* name) { return dlvsym(RTLD_DEFAULT, name, "GLIBC_PRIVATE"); }

// Reads the offset of a single field. It must have the size, in bits, that this folder uses it with.
bool field(const char* name, uint32_t bits, uint32_t& offset) {
  auto* f = static_cast<const Field*>(private_symbol(name));
  if (!f || f->bits != bits || f->count != 1) return false;
  offset = f->offset;
  return true;
}

bool array(const char* name, uint32_t& bits, uint32_t& count, uint32_t& offset) {
  auto* f = static_cast<const Field*>(private_symbol(name));
  if (f) bits = f->bits, count = f->count, offset = f->offset;
  return f;
}

bool number(const char* name, uint32_t& value) {
  auto* p = static_cast<const uint32_t*>(private_symbol(name));
  if (p) value = *p;
  return p;
}

// Returns true if a field of so many bytes is aligned at `offset` and ends within the limit.
bool fits(size_t offset, size_t bytes, size_t limit) {
  return bytes != 0 && offset % (bytes < sizeof(void*) ? bytes : sizeof(void*)) == 0 && offset + bytes <= limit;
}

bool two_words(size_t a, size_t b, size_t limit) {
  return a != b && limit % sizeof(void*) == 0 && fits(a, sizeof(void*), limit) && fits(b, sizeof(void*), limit);
}

const char* find_entries() {
  uint32_t size = 0;
  if (!number("_thread_db_sizeof_pthread", size) || size == 0 || size > kMaxPthread || size % kTcbAlign != 0)
    return "no size of struct pthread";
  layout.sizeof_pthread = size;
  auto* info = reinterpret_cast<void (*)(size_t*, size_t*)>(private_symbol("_dl_get_tls_static_info"));
  dl_allocate_tls = reinterpret_cast<void* (*)(void*)>(private_symbol("_dl_allocate_tls"));
  dl_deallocate_tls = reinterpret_cast<void (*)(void*, bool)>(private_symbol("_dl_deallocate_tls"));
  call_tls_dtors = reinterpret_cast<void (*)()>(private_symbol("__call_tls_dtors"));
  ctype_init = reinterpret_cast<void (*)()>(private_symbol("__ctype_init"));
  layout.rtld_global = static_cast<char*>(private_symbol("_rtld_global"));
  layout.keys = static_cast<char*>(private_symbol("__pthread_keys"));
  if (!info || !dl_allocate_tls || !dl_deallocate_tls || !call_tls_dtors || !ctype_init || !layout.rtld_global || !layout.keys)
    return "libc lacks a loader entry";
  info(&layout.tls_size, &layout.tls_align);
  void* resp = private_symbol("__resp");
  if (!resp) return "no resolver state";
  layout.resp = static_cast<char*>(resp) - static_cast<char*>(thread_pointer());
  return nullptr;
}

bool read_pthread_fields(Read& r) {
  auto* specific = static_cast<const Field*>(private_symbol("_thread_db_pthread_specific"));
  if (!specific) return false;
  r.specific_bits = specific->bits;
  return field("_thread_db_pthread_specific", specific->bits, layout.specific) && field("_thread_db_pthread_tid", 32, layout.tid) &&
         field("_thread_db_pthread_list", 2 * kWordBits, layout.list) &&
         field("_thread_db_pthread_cancelhandling", 32, layout.cancelhandling) && field("_thread_db_pthread_dtvp", kWordBits, layout.dtv) &&
         field("_thread_db_list_t_next", kWordBits, layout.list_next) && field("_thread_db_list_t_prev", kWordBits, layout.list_prev);
}

bool read_key_fields(Read& r) {
  return array("_thread_db_pthread_key_data_level2_data", r.level2_bits, layout.level2_count, layout.level2_data) &&
         field("_thread_db_pthread_key_data_seq", kWordBits, layout.key_data_seq) &&
         field("_thread_db_pthread_key_data_data", kWordBits, layout.key_data_data) &&
         field("_thread_db_pthread_key_struct_seq", kWordBits, layout.key_seq) &&
         field("_thread_db_pthread_key_struct_destr", kWordBits, layout.key_destr) &&
         array("_thread_db___pthread_keys", r.key_bits, layout.key_count, r.key_offset) &&
         number("_thread_db_sizeof_pthread_key_data", layout.sizeof_key_data) &&
         number("_thread_db_sizeof_pthread_key_data_level2", r.level2_size) &&
         number("_thread_db_sizeof_pthread_key_struct", layout.sizeof_key_struct);
}

bool read_loader_fields(Read& r) {
  uint32_t unused;  // nobody reads how many elements an array without a bound has
  return array("_thread_db_dtv_dtv", r.dtv_bits, unused, r.dtv_offset) &&
         field("_thread_db_dtv_t_pointer_val", kWordBits, layout.dtv_val) &&
         field("_thread_db_rtld_global__dl_stack_user", 2 * kWordBits, r.stack_user) &&
         field("_thread_db_rtld_global__dl_tls_dtv_slotinfo_list", kWordBits, r.slotinfo) &&
         field("_thread_db_dtv_slotinfo_list_len", kWordBits, layout.slotinfo_len) &&
         field("_thread_db_dtv_slotinfo_list_next", kWordBits, layout.slotinfo_next) &&
         array("_thread_db_dtv_slotinfo_list_slotinfo", r.slotinfo_bits, unused, layout.slotinfo_array) &&
         field("_thread_db_dtv_slotinfo_map", kWordBits, layout.slotinfo_map) &&
         field("_thread_db_link_map_l_tls_offset", kWordBits, layout.map_offset) &&
         field("_thread_db_link_map_l_tls_modid", kWordBits, layout.map_modid) &&
         number("_thread_db_sizeof_dtv_slotinfo", layout.sizeof_slotinfo);
}

bool pthread_fields_fit() {
  size_t size = layout.sizeof_pthread, table = layout.level1_count * sizeof(void*);
  return fits(layout.tid, 4, size) && fits(layout.list, 2 * sizeof(void*), size) && fits(layout.cancelhandling, 4, size) &&
         fits(layout.specific, table, size) && fits(layout.dtv, sizeof(void*), dtv_limit(size));
}

bool key_tables_fit(const Read& r) {
  return two_words(layout.key_data_seq, layout.key_data_data, layout.sizeof_key_data) && layout.sizeof_key_data <= kMaxElement &&
         r.key_offset == 0 && two_words(layout.key_seq, layout.key_destr, layout.sizeof_key_struct) &&
         layout.sizeof_key_struct <= kMaxElement && r.key_bits == 8 * layout.sizeof_key_struct &&
         r.level2_bits == 8 * layout.sizeof_key_data && layout.key_count == PTHREAD_KEYS_MAX && layout.level1_count != 0 &&
         layout.key_count % layout.level1_count == 0 && layout.level2_count == layout.key_count / layout.level1_count &&
         layout.level2_data % sizeof(void*) == 0 && r.level2_size == layout.level2_data + layout.level2_count * layout.sizeof_key_data;
}

bool loader_tables_fit(const Read& r) {
  return two_words(layout.slotinfo_len, layout.slotinfo_next, layout.slotinfo_array) && layout.slotinfo_array % sizeof(void*) == 0 &&
         layout.slotinfo_array <= kMaxElement && r.slotinfo_bits == 8 * layout.sizeof_slotinfo && layout.sizeof_slotinfo <= kMaxElement &&
         fits(layout.slotinfo_map, sizeof(void*), layout.sizeof_slotinfo) && two_words(layout.map_offset, layout.map_modid, kMaxLoader) &&
         fits(r.stack_user, 2 * sizeof(void*), kMaxLoader) && fits(r.slotinfo, sizeof(void*), kMaxLoader);
}

}  // namespace

const char* read_descriptors() {
  if (const char* why = find_entries()) return why;
  Read r{};
  if (!read_pthread_fields(r) || !read_key_fields(r) || !read_loader_fields(r))
    return "libc lacks a debugger descriptor, or has it in another form";
  layout.level1_count = r.specific_bits / kWordBits;  // the descriptor calls the array one element
  if (!pthread_fields_fit()) return "a field is outside of struct pthread";
  if (!two_words(layout.list_next, layout.list_prev, 2 * sizeof(void*))) return "the list's nodes have an unknown form";
  if (!key_tables_fit(r)) return "the tables of keys have an unknown form";
  layout.dtv_entry = r.dtv_bits / 8;
  if (r.dtv_bits != 2 * kWordBits || r.dtv_offset != 0 || !fits(layout.dtv_val, sizeof(void*), layout.dtv_entry))
    return "unknown form of the dtv";
  if (!loader_tables_fit(r)) return "the loader's tables have an unknown form";
  layout.stack_user = layout.rtld_global + r.stack_user;
  layout.slotinfo_list = layout.rtld_global + r.slotinfo;
  return nullptr;
}

}  // namespace fiberthread::glibc
