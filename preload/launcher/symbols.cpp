// SPDX-License-Identifier: MIT
#include "preload/launcher/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>

namespace fiberthread {

// The used part of libdw and libelf, by their own names and with their layouts (elfutils/libdwfl.h, libelf.h). So the build needs nothing
// of them, and only dumps need the library.
struct Dwfl;
struct Module;
struct SourceLine;
struct Thread;
struct Frame;
struct Elf;
using Address = uint64_t;

struct DwflCallbacks {
  int (*find_elf)(Module*, void**, const char*, Address, char**, Elf**);
  int (*find_debuginfo)(Module*, void**, const char*, Address, const char*, const char*, uint32_t, char**);
  int (*section_address)(Module*, void**, const char*, Address, const char*, uint32_t, const void*, Address*);
  char** debuginfo_path;
};
struct ThreadCallbacks {
  pid_t (*next_thread)(Dwfl*, void*, void**);
  bool (*get_thread)(Dwfl*, pid_t, void*, void**);
  bool (*memory_read)(Dwfl*, Address, Address*, void*);
  bool (*set_initial_registers)(Thread*, void*);
  void (*detach)(Dwfl*, void*);
  void (*thread_detach)(Thread*, void*);
};

#define FUNCTIONS(X) \
  X(elf_version, unsigned (*)(unsigned)) \
  X(elf_begin, Elf* (*)(int, int, Elf*)) \
  X(elf_end, int (*)(Elf*)) \
  X(dwfl_begin, Dwfl* (*)(const DwflCallbacks*)) \
  X(dwfl_end, void (*)(Dwfl*)) \
  X(dwfl_errmsg, const char* (*)(int)) \
  X(dwfl_linux_proc_report, int (*)(Dwfl*, pid_t)) \
  X(dwfl_core_file_report, int (*)(Dwfl*, Elf*, const char*)) \
  X(dwfl_report_end, int (*)(Dwfl*, int (*)(Module*, void*, const char*, Address, void*), void*)) \
  X(dwfl_linux_proc_find_elf, int (*)(Module*, void**, const char*, Address, char**, Elf**)) \
  X(dwfl_build_id_find_elf, int (*)(Module*, void**, const char*, Address, char**, Elf**)) \
  X(dwfl_standard_find_debuginfo, int (*)(Module*, void**, const char*, Address, const char*, const char*, uint32_t, char**)) \
  X(dwfl_attach_state, bool (*)(Dwfl*, Elf*, pid_t, const ThreadCallbacks*, void*)) \
  X(dwfl_thread_state_registers, bool (*)(Thread*, int, unsigned, const Address*)) \
  X(dwfl_thread_state_register_pc, void (*)(Thread*, Address)) \
  X(dwfl_getthread_frames, int (*)(Dwfl*, pid_t, int (*)(Frame*, void*), void*)) \
  X(dwfl_frame_pc, bool (*)(Frame*, Address*, bool*)) \
  X(dwfl_addrmodule, Module* (*)(Dwfl*, Address)) \
  X(dwfl_module_info, const char* (*)(Module*, void***, Address*, Address*, Address*, Address*, const char**, const char**)) \
  X(dwfl_module_addrinfo, const char* (*)(Module*, Address, Address*, Elf64_Sym*, uint32_t*, Elf**, Address*)) \
  X(dwfl_module_getsrc, SourceLine* (*)(Module*, Address)) \
  X(dwfl_lineinfo, const char* (*)(SourceLine*, Address*, int*, int*, Address*, Address*))

struct Symbols::Library {
#define DECLARE(name, ...) std::decay_t<__VA_ARGS__> name = nullptr;
  FUNCTIONS(DECLARE)
};

const Symbols::Library* Symbols::library() {
  static Library l;
  static bool complete = [] {
    void* h = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!h) return false;
    bool all = true;
#define RESOLVE(name, ...) all = (l.name = reinterpret_cast<std::decay_t<__VA_ARGS__>>(dlsym(h, #name))) && all;
    FUNCTIONS(RESOLVE)
    return all;
  }();
  return complete ? &l : nullptr;
}

namespace {

constexpr int kContinue = 0, kAbort = 1;  // DWARF_CB_OK, DWARF_CB_ABORT
constexpr int kReadMapped = 8;            // ELF_C_READ_MMAP
constexpr pid_t kTheThread = 1;           // to libdw, each fiber in turn is this thread

}  // namespace

struct Callbacks {
  static pid_t next(Dwfl*, void* s, void** thread) {
    if (*thread) return 0;
    *thread = s;
    return kTheThread;
  }
  static bool get(Dwfl*, pid_t, void* s, void** thread) {
    *thread = s;
    return true;
  }
  static bool read(Dwfl*, Address address, Address* to, void* p) {
    auto& s = *static_cast<Symbols*>(p);
    uint64_t at = address - s.copied_at_;
    if (at < s.copied_->size() && s.copied_->size() - at >= sizeof *to) {
      memcpy(to, s.copied_->data() + at, sizeof *to);
      return true;
    }
    return s.target_.read(address, to, sizeof *to);
  }
  static bool registers(Thread* thread, void* p) {
    auto& s = *static_cast<Symbols*>(p);
    for (unsigned i = 0; i < Registers::kCount; i++)
      if (s.registers_->known >> i & 1) s.l_->dwfl_thread_state_registers(thread, static_cast<int>(i), 1, &s.registers_->value[i]);
    s.l_->dwfl_thread_state_register_pc(thread, s.registers_->pc);
    return true;
  }
  static int frame(Frame* frame, void* p) {
    auto& s = *static_cast<Symbols*>(p);
    Address pc;
    bool exact;
    if (!s.l_->dwfl_frame_pc(frame, &pc, &exact) || !pc) return kAbort;
    s.frames_.push_back({pc, exact});
    return s.frames_.size() < s.most_ ? kContinue : kAbort;
  }
};

Symbols::~Symbols() {
  if (dwfl_) l_->dwfl_end(static_cast<Dwfl*>(dwfl_));
  if (elf_) l_->elf_end(static_cast<Elf*>(elf_));
}

Trouble Symbols::open() {
  l_ = library();
  if (!l_) return "libdw (elfutils) is not installed";
  unsetenv("DEBUGINFOD_URLS");  // a dump must not wait for servers
  static const DwflCallbacks of_process{l_->dwfl_linux_proc_find_elf, l_->dwfl_standard_find_debuginfo, nullptr, nullptr};
  static const DwflCallbacks of_core{l_->dwfl_build_id_find_elf, l_->dwfl_standard_find_debuginfo, nullptr, nullptr};
  static const ThreadCallbacks threads{Callbacks::next, Callbacks::get, Callbacks::read, Callbacks::registers, nullptr, nullptr};
  auto* dwfl = l_->dwfl_begin(target_.is_core() ? &of_core : &of_process);
  dwfl_ = dwfl;
  bool ok = dwfl;
  if (ok && target_.is_core()) {
    l_->elf_version(EV_CURRENT);
    elf_ = l_->elf_begin(target_.core(), kReadMapped, nullptr);
    ok = elf_ && l_->dwfl_core_file_report(dwfl, static_cast<Elf*>(elf_), nullptr) >= 0;
  } else if (ok) {
    ok = l_->dwfl_linux_proc_report(dwfl, target_.pid()) == 0;
  }
  ok = ok && l_->dwfl_report_end(dwfl, nullptr, nullptr) == 0 &&
       l_->dwfl_attach_state(dwfl, static_cast<Elf*>(elf_), target_.pid(), &threads, this);
  if (ok) return {};
  const char* why = l_->dwfl_errmsg(-1);
  return std::string("libdw: ") + (why ? why : "no memory");
}

std::vector<StackFrame> Symbols::unwind(const Registers& registers, const std::vector<char>& copied, uint64_t copied_at, unsigned most) {
  registers_ = &registers;
  copied_ = &copied;
  copied_at_ = copied_at;
  most_ = most;
  frames_.clear();
  l_->dwfl_getthread_frames(static_cast<Dwfl*>(dwfl_), kTheThread, Callbacks::frame, this);
  return frames_;
}

const std::string& Symbols::place(const StackFrame& frame) {
  auto [found, fresh] = places_.try_emplace({frame.pc, frame.exact});
  std::string& s = found->second;
  if (!fresh) return s;
  Address pc = frame.pc - !frame.exact;
  Module* m = l_->dwfl_addrmodule(static_cast<Dwfl*>(dwfl_), pc);
  if (!m) return s = "??";
  Address offset;
  Elf64_Sym symbol;
  const char* name = l_->dwfl_module_addrinfo(m, pc, &offset, &symbol, nullptr, nullptr, nullptr);
  if (name) {
    int status;
    char* plain = strncmp(name, "_Z", 2) ? nullptr : abi::__cxa_demangle(name, nullptr, nullptr, &status);
    s = plain ? plain : name;
    free(plain);
  } else {
    s = "??";
  }
  int line = 0;
  const char* file = nullptr;
  // Line numbers of the library do not help a reader who knows only the program.
  SourceLine* l = target_.in_library(pc) && !full_ ? nullptr : l_->dwfl_module_getsrc(m, pc);
  if (l) file = l_->dwfl_lineinfo(l, nullptr, &line, nullptr, nullptr, nullptr);
  const char* object = l_->dwfl_module_info(m, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (file && line) s += std::string(" at ") + file + ":" + std::to_string(line);
  else if (object) s += std::string(" in ") + object;
  return s;
}

std::string Symbols::variable(uint64_t address) {
  Module* m = l_->dwfl_addrmodule(static_cast<Dwfl*>(dwfl_), address);
  if (!m) {
    // The memory after the data that come from the file (.bss) belongs to the module as well, though no file is mapped there.
    const Mapping* before = nullptr;
    for (auto& mapping : target_.mappings())
      if (mapping.high <= address && (!before || mapping.high > before->high)) before = &mapping;
    if (before) m = l_->dwfl_addrmodule(static_cast<Dwfl*>(dwfl_), before->low);
  }
  Address offset;
  Elf64_Sym symbol;
  const char* name = m ? l_->dwfl_module_addrinfo(m, address, &offset, &symbol, nullptr, nullptr, nullptr) : nullptr;
  if (!name || ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || offset >= symbol.st_size) return {};
  int status;
  char* plain = strncmp(name, "_Z", 2) ? nullptr : abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string s = plain ? plain : name;
  free(plain);
  return offset ? s + "+" + std::to_string(offset) : s;
}

}  // namespace fiberthread
