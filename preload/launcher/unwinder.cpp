// SPDX-License-Identifier: MIT
#include "preload/launcher/unwinder.h"

#include <dlfcn.h>
#include <elf.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include <algorithm>

namespace fiberthread {

#if defined(__x86_64__)
#define FIBERTHREAD_UNW(name) "_Ux86_64_" name
constexpr const char* kLibrary = "libunwind-x86_64.so.8";
constexpr int kPc = 16, kReturn = 16;
constexpr bool kKnownByCode = false;    // is_signal_frame() tells of the frame before
constexpr uint64_t kInterruptedPc = 0;  // a step finds it
constexpr const char* kMissing = "libunwind is not installed";
#define ONLY_OF_1_8(X)
#elif defined(__aarch64__)
#define FIBERTHREAD_UNW(name) "_Uaarch64_" name
constexpr const char* kLibrary = "libunwind-aarch64.so.8";
// A step leaves the address in the link register.
constexpr int kPc = 32, kReturn = 30;
constexpr bool kKnownByCode = true;  // the kernel's code for a handler's return has no unwind information
// Where the kernel's frame for a handler has the interrupted pc: siginfo and ucontext come one after the other.
constexpr uint64_t kInterruptedPc = sizeof(siginfo_t) + offsetof(ucontext_t, uc_mcontext.pc);
// Older versions cannot unwind functions that sign their return addresses.
constexpr const char* kMissing = "libunwind 1.8 is not installed";
#define ONLY_OF_1_8(X) X(get_elf_filename, int (*)(Cursor*, char*, size_t, Word*))
#endif

// The used part of libunwind, by its own names and with its layouts (libunwind-common.h and libunwind-dynamic.h of versions 1.6 to 1.8,
// which have one soname). So the build needs nothing of it.
using Word = uint64_t;
struct Space;
struct Cursor {
  alignas(16) Word words[4096];  // more than any version asks for
};
struct ProcedureInfo;

constexpr int kBadRegister = -3, kInvalid = -8, kNoInfo = -10;
constexpr int kCacheForAll = 1;

struct DynamicInfo {
  DynamicInfo *next = nullptr, *previous = nullptr;
  Word start = 0, end = 0, gp = 0;
  int32_t format = 2;  // UNW_INFO_FORMAT_REMOTE_TABLE
  int32_t pad = 0;
  Word load_offset = 0;
  struct {
    Word name, segment_base, words, table;
  } remote = {};
};

struct AccessorTable {
  int (*find_proc_info)(Space*, Word, ProcedureInfo*, int, void*);
  void (*put_unwind_info)(Space*, ProcedureInfo*, void*);
  int (*get_dyn_info_list_addr)(Space*, Word*, void*);
  int (*access_mem)(Space*, Word, Word*, int, void*);
  int (*access_reg)(Space*, int, Word*, int, void*);
  int (*access_fpreg)(Space*, int, void*, int, void*);
  int (*resume)(Space*, Cursor*, void*);
  void* optional[8];  // there are more in later versions; none is needed
};

#define FUNCTIONS(X) \
  X(create_addr_space, Space* (*)(AccessorTable*, int)) \
  X(destroy_addr_space, void (*)(Space*)) \
  X(set_caching_policy, int (*)(Space*, int)) \
  X(set_cache_size, int (*)(Space*, size_t, int)) \
  X(dwarf_search_unwind_table, int (*)(Space*, Word, DynamicInfo*, ProcedureInfo*, int, void*)) \
  X(init_remote, int (*)(Cursor*, Space*, void*)) \
  X(step, int (*)(Cursor*)) \
  X(get_reg, int (*)(Cursor*, int, Word*)) \
  X(is_signal_frame, int (*)(Cursor*)) \
  ONLY_OF_1_8(X)

struct Unwinder::Library {
#define DECLARE(name, ...) std::decay_t<__VA_ARGS__> name = nullptr;
  FUNCTIONS(DECLARE)
};

const Unwinder::Library* Unwinder::library() {
  static Library l;
  static bool complete = [] {
    void* h = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!h) return false;
    bool all = true;
#define RESOLVE(name, ...) all = (l.name = reinterpret_cast<std::decay_t<__VA_ARGS__>>(dlsym(h, FIBERTHREAD_UNW(#name)))) && all;
    FUNCTIONS(RESOLVE)
    return all;
  }();
  return complete ? &l : nullptr;
}

struct Accessors {
  static int find(Space* space, Word pc, ProcedureInfo* info, int need, void* p) {
    auto& u = *static_cast<Unwinder*>(p);
    auto& t = u.table_of(pc);
    if (!t.count || pc < t.low || pc >= t.high) return kNoInfo;
    DynamicInfo i;
    i.start = t.low;
    i.end = t.high;
    i.remote = {0, t.header, t.count, t.entries};
    return u.l_->dwarf_search_unwind_table(space, pc, &i, info, need, p);
  }
  static void put(Space*, ProcedureInfo*, void*) {}
  static int dynamic(Space*, Word*, void*) { return kNoInfo; }
  static int memory(Space*, Word address, Word* word, int write, void* p) {
    return !write && static_cast<Unwinder*>(p)->read(address, *word) ? 0 : kInvalid;
  }
  static int reg(Space*, int number, Word* value, int write, void* p) {
    const Registers& r = static_cast<Unwinder*>(p)->thread_->registers;
    if (write || number < 0) return kBadRegister;
    if (number == kPc) *value = r.pc;
    else if (number < static_cast<int>(Registers::kCount) && r.known >> number & 1)
      *value = Thread::without_signature(static_cast<Unwinder*>(p)->target_, r.value[number]);
    else return kBadRegister;
    return 0;
  }
  static int vector(Space*, int, void*, int, void*) { return kBadRegister; }
  static int resume(Space*, Cursor*, void*) { return kInvalid; }
};

Unwinder::~Unwinder() {
  if (space_) l_->destroy_addr_space(static_cast<Space*>(space_));
}

Trouble Unwinder::open() {
  l_ = library();
  if (!l_) return kMissing;
  AccessorTable table{Accessors::find, Accessors::put,    Accessors::dynamic, Accessors::memory,
                      Accessors::reg,  Accessors::vector, Accessors::resume,  {}};
  auto* space = l_->create_addr_space(&table, 0);
  if (!space) return "libunwind: no memory";
  space_ = space;
  // Many fibers wait at the same places.
  l_->set_caching_policy(space, kCacheForAll);
  l_->set_cache_size(space, 4096, 0);
  return {};
}

std::vector<StackFrame> Unwinder::unwind(const Thread& thread, unsigned most) {
  std::vector<StackFrame> frames;
  thread_ = &thread;
  Cursor cursor;
  bool after_signal = true;
  uint64_t pc = thread.registers.pc;
  if (l_->init_remote(&cursor, static_cast<Space*>(space_), this) != 0) return frames;
  while (pc && frames.size() < most) {
    // The frame of a handler's return is never called: it begins at its pc.
    bool signal = is_signal(pc - !after_signal) || (kKnownByCode && l_->is_signal_frame(&cursor) > 0);
    frames.push_back({pc, after_signal || signal});
    after_signal = signal;
    Word sp = 0;
    bool in_frame = signal && kInterruptedPc && l_->get_reg(&cursor, static_cast<int>(kStackPointer), &sp) == 0;
    if (l_->step(&cursor) <= 0) break;
    if (in_frame ? !thread.read(target_, sp + kInterruptedPc, pc) : l_->get_reg(&cursor, kReturn, &pc) != 0) break;
  }
  return frames;
}

// Returns whether a handler returns to the code at this address: whether the common part of its frame description is marked with an S (Linux
// Standard Base, chapter 10.6.1).
bool Unwinder::is_signal(uint64_t pc) {
  auto [known, fresh] = signals_.try_emplace(pc, false);
  const Table& t = table_of(pc);
  if (!fresh || !t.count) return known->second;
  struct Entry {
    int32_t code, description;
  };
  auto entry = [&](uint64_t i) { return target_.get<Entry>(t.entries + i * sizeof(Entry)); };
  uint64_t low = 0, high = t.count;  // the last function that does not begin after pc
  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    (t.header + static_cast<uint64_t>(entry(middle).code) <= pc ? low : high) = middle;
  }
  uint64_t back_at = t.header + static_cast<uint64_t>(entry(low).description) + 4;
  char augmentation[8] = {};
  target_.read_some(back_at - target_.get<uint32_t>(back_at) + 9, augmentation, sizeof augmentation - 1);
  return known->second = strchr(augmentation, 'S') != nullptr;
}

// Pages of files are kept: they hold the tables, and nearly all of them never change. A word of any other kind is read anew.
bool Unwinder::read(uint64_t address, uint64_t& word) {
  uint64_t at = address - thread_->copied_at, in_page = address % 4096;
  if (at < thread_->copied.size() || in_page > 4096 - sizeof word || !target_.mapping_at(address))
    return thread_->read(target_, address, word);
  auto [page, fresh] = pages_.try_emplace(address - in_page);
  if (fresh && !target_.read(address - in_page, page->second.data(), page->second.size())) {
    pages_.erase(page);
    return target_.read(address, &word, sizeof word);
  }
  memcpy(&word, page->second.data() + in_page, sizeof word);
  return true;
}

const Unwinder::Table& Unwinder::table_of(uint64_t pc) {
  static const Table none;
  const Mapping* m = target_.mapping_at(pc);
  if (!m) return none;
  auto [table, fresh] = tables_.try_emplace(m);
  if (!fresh) return table->second;
  // An object begins where the start of its file is mapped.
  const Mapping* first = m;
  while (first->offset && first != target_.mappings().data() && first[-1].path == m->path) first--;
  return table->second = first->offset == 0 ? read_table(first->low) : Table{};
}

// Reads the header of .eh_frame (Linux Standard Base, chapter 10.6.2), as ld, gold, lld and mold write it.
Unwinder::Table Unwinder::read_table(uint64_t base) const {
  Table t;
  auto header = target_.get<Elf64_Ehdr>(base);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_phentsize != sizeof(Elf64_Phdr)) return t;
  uint64_t lowest = ~uint64_t{0}, highest = 0, frames = 0;
  for (unsigned i = 0; i < header.e_phnum; i++) {
    auto p = target_.get<Elf64_Phdr>(base + header.e_phoff + i * sizeof(Elf64_Phdr));
    if (p.p_type == PT_GNU_EH_FRAME) frames = p.p_vaddr;
    if (p.p_type != PT_LOAD) continue;
    lowest = std::min(lowest, p.p_vaddr & ~uint64_t{4095});
    highest = std::max(highest, p.p_vaddr + p.p_memsz);
  }
  if (!frames || lowest >= highest) return t;
  t.low = base;
  t.high = base + highest - lowest;
  t.header = base + frames - lowest;
  struct {
    uint8_t version, pointer, count, table;
  } h;
  constexpr uint8_t kAbsolute4 = 0x03, kSigned4 = 0x0b, kTable = 0x3b;  // DW_EH_PE_udata4, sdata4, datarel | sdata4
  if (!target_.read(t.header, &h, sizeof h) || h.version != 1 || h.table != kTable || (h.count & 0x0f) != kAbsolute4) return t;
  bool of_four = (h.pointer & 0x0f) == kAbsolute4 || (h.pointer & 0x0f) == kSigned4;
  uint64_t count_at = t.header + sizeof h + (of_four ? 4 : 8);
  t.entries = count_at + 4;
  t.count = target_.get<uint32_t>(count_at);
  return t;
}

}  // namespace fiberthread
