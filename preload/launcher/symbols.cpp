// SPDX-License-Identifier: MIT
#include "preload/launcher/symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>

#include <initializer_list>

#include "preload/launcher/elf_symbols.h"

namespace fiberthread {

// The used part of libdw and libelf, by their own names and with their layouts (elfutils/libdwfl.h, libelf.h). So the build needs nothing
// of them, and only dumps need the library.
struct Dwfl;
struct Module;
struct SourceLine;
struct DwflThread;
struct Frame;
struct SourceFiles;
struct Elf;
using Address = uint64_t;

struct Attribute {
  unsigned code, form;
  void *value, *unit;
};

// An entry of the debug information. Some functions fill in one that their caller keeps.
struct Symbols::Die {
  void *address, *unit, *abbreviation;
  long padding;
};

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
  bool (*set_initial_registers)(DwflThread*, void*);
  void (*detach)(Dwfl*, void*);
  void (*thread_detach)(DwflThread*, void*);
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
  X(dwfl_thread_state_registers, bool (*)(DwflThread*, int, unsigned, const Address*)) \
  X(dwfl_thread_state_register_pc, void (*)(DwflThread*, Address)) \
  X(dwfl_getthread_frames, int (*)(Dwfl*, pid_t, int (*)(Frame*, void*), void*)) \
  X(dwfl_frame_pc, bool (*)(Frame*, Address*, bool*)) \
  X(dwfl_addrmodule, Module* (*)(Dwfl*, Address)) \
  X(dwfl_module_info, const char* (*)(Module*, void***, Address*, Address*, Address*, Address*, const char**, const char**)) \
  X(dwfl_module_addrinfo, const char* (*)(Module*, Address, Address*, Elf64_Sym*, uint32_t*, Elf**, Address*)) \
  X(dwfl_module_getsrc, SourceLine* (*)(Module*, Address)) \
  X(dwfl_lineinfo, const char* (*)(SourceLine*, Address*, int*, int*, Address*, Address*)) \
  X(dwfl_module_addrdie, Die* (*)(Module*, Address, Address*)) \
  X(dwarf_haspc, int (*)(Die*, Address)) \
  X(dwarf_child, int (*)(Die*, Die*)) \
  X(dwarf_siblingof, int (*)(Die*, Die*)) \
  X(dwarf_getscopes_die, int (*)(Die*, Die**)) \
  X(dwarf_tag, int (*)(Die*)) \
  X(dwarf_diename, const char* (*)(Die*)) \
  X(dwarf_attr_integrate, Attribute* (*)(Die*, unsigned, Attribute*)) \
  X(dwarf_attr, Attribute* (*)(Die*, unsigned, Attribute*)) \
  X(dwarf_formref_die, Die* (*)(Attribute*, Die*)) \
  X(dwarf_formstring, const char* (*)(Attribute*)) \
  X(dwarf_formudata, int (*)(Attribute*, uint64_t*)) \
  X(dwarf_getsrcfiles, int (*)(Die*, SourceFiles**, size_t*)) \
  X(dwarf_filesrc, const char* (*)(SourceFiles*, size_t, uint64_t*, uint64_t*))

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
// DWARF's numbers of DW_TAG_… and DW_AT_….
constexpr int kFunction = 0x2e, kInlined = 0x1d, kNamespace = 0x39, kClass = 0x02, kStructure = 0x13, kUnion = 0x17, kBlock = 0x0b,
              kTry = 0x32, kCatch = 0x25;
constexpr unsigned kCallFile = 0x58, kCallLine = 0x59, kLinkageName = 0x6e, kOrigin = 0x31, kDeclaration = 0x47;

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
    return s.thread_->read(s.target_, address, *to);
  }
  static bool registers(DwflThread* thread, void* p) {
    auto& s = *static_cast<Symbols*>(p);
    const Registers& r = s.thread_->registers;
    for (unsigned i = 0; i < Registers::kCount; i++) {
      uint64_t value = Thread::without_signature(s.target_, r.value[i]);
      if (r.known >> i & 1) s.l_->dwfl_thread_state_registers(thread, static_cast<int>(i), 1, &value);
    }
    s.l_->dwfl_thread_state_register_pc(thread, r.pc);
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

std::vector<StackFrame> Symbols::unwind(const Thread& thread, unsigned most) {
  thread_ = &thread;
  most_ = most;
  frames_.clear();
  l_->dwfl_getthread_frames(static_cast<Dwfl*>(dwfl_), kTheThread, Callbacks::frame, this);
  return frames_;
}

// Returns the name of a function, with its namespaces and classes.
std::string Symbols::name_of(Die& function) {
  Attribute a;
  if (const char* whole = l_->dwarf_formstring(l_->dwarf_attr_integrate(&function, kLinkageName, &a)); whole && strncmp(whole, "_R", 2))
    return demangled(whole);
  const char* name = l_->dwarf_diename(&function);
  if (!name) return "??";
  // A function without a name for linking stands where it was declared.
  Die die = function, *scopes = nullptr;
  for (unsigned to : {kOrigin, kDeclaration})
    if (l_->dwarf_attr(&die, to, &a)) l_->dwarf_formref_die(&a, &die);
  std::string s = name;
  int n = l_->dwarf_getscopes_die(&die, &scopes);
  for (int i = 1; i < n; i++) {
    int tag = l_->dwarf_tag(&scopes[i]);
    if (tag != kNamespace && tag != kClass && tag != kStructure && tag != kUnion) continue;
    const char* around = l_->dwarf_diename(&scopes[i]);
    if (!around && tag == kNamespace) around = "(anonymous namespace)";
    if (around) s.insert(0, std::string(around) + "::");
  }
  free(scopes);
  return s;
}

// Finds the function at this address below an entry, and what was inlined there: the outermost one first. (dwarf_getscopes() does not look
// into namespaces, where Rust has its functions.)
bool Symbols::find_functions(Die& in, uint64_t pc, std::vector<Die>& found) {
  Die child;
  if (l_->dwarf_child(&in, &child) != 0) return false;
  do {
    int tag = l_->dwarf_tag(&child);
    bool named = tag == kNamespace || tag == kClass || tag == kStructure || tag == kUnion;
    bool function = tag == kFunction || tag == kInlined;
    if (!named && !function && tag != kBlock && tag != kTry && tag != kCatch) continue;
    if (!named && l_->dwarf_haspc(&child, pc) <= 0) continue;
    if (function) found.push_back(child);
    if (find_functions(child, pc, found) || !named) return true;
  } while (l_->dwarf_siblingof(&child, &child) == 0);
  return false;
}

void Symbols::places(uint64_t pc, bool lines, std::vector<std::string>& to) {
  Module* m = l_->dwfl_addrmodule(static_cast<Dwfl*>(dwfl_), pc);
  if (!m) return to.push_back("??");
  Address offset, bias = 0;
  Elf64_Sym symbol;
  const char* linked = l_->dwfl_module_addrinfo(m, pc, &offset, &symbol, nullptr, nullptr, nullptr);
  const char* object = l_->dwfl_module_info(m, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  std::string name = linked ? demangled(linked) : "??";
  int line = 0;
  SourceLine* l = lines ? l_->dwfl_module_getsrc(m, pc) : nullptr;
  const char* file = l ? l_->dwfl_lineinfo(l, nullptr, &line, nullptr, nullptr, nullptr) : nullptr;
  Die* unit = file && line ? l_->dwfl_module_addrdie(m, pc, &bias) : nullptr;
  // Of code that no unit knows, it is the line of the code before.
  if (!unit || l_->dwarf_haspc(unit, pc - bias) <= 0) return to.push_back(name + (object ? std::string(" in ") + object : ""));
  std::vector<Die> functions;
  find_functions(*unit, pc - bias, functions);
  // Rust's names for linking are not those of C++.
  if (!functions.empty() && (!linked || !strncmp(linked, "_R", 2))) name = name_of(functions[0]);
  for (size_t i = functions.size(); i-- > 1;) {
    to.push_back(name_of(functions[i]) + " at " + file + ":" + std::to_string(line) + " (inlined)");
    // It was called here.
    Attribute a;
    uint64_t number = 0, index = 0;
    SourceFiles* files;
    size_t count;
    line = l_->dwarf_formudata(l_->dwarf_attr(&functions[i], kCallLine, &a), &number) == 0 ? static_cast<int>(number) : 0;
    file = nullptr;
    if (l_->dwarf_formudata(l_->dwarf_attr(&functions[i], kCallFile, &a), &index) == 0 &&
        l_->dwarf_getsrcfiles(unit, &files, &count) == 0 && index < count)
      file = l_->dwarf_filesrc(files, index, nullptr, nullptr);
    if (!file) file = "??";
  }
  to.push_back(name + " at " + file + ":" + std::to_string(line));
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
  std::string s = demangled(name);
  return offset ? s + "+" + std::to_string(offset) : s;
}

}  // namespace fiberthread
