// SPDX-License-Identifier: MIT
#include "preload/launcher/target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "preload/debug_layout.h"
#include "sched/arch/arch.h"
#include FIBERTHREAD_CPU(registers.h)

namespace fiberthread {

const unsigned kStackPointer = kStackPointerNumber;
const uint64_t kSignature = kSignatureBits;

namespace {

constexpr uint64_t kMaxName = 4096;

#define SAVED(name, number) {"frame." #name, number},
constexpr struct {
  const char* name;
  unsigned number;
} kSaved[] = {FIBERTHREAD_SAVED_REGISTERS(SAVED)};
#undef SAVED

Trouble no_permission(int pid) {
  return "no permission to look into process " + std::to_string(pid) +
         ": only its user and root may, in a container root with CAP_SYS_PTRACE" +
         (access("/proc/sys/kernel/yama/ptrace_scope", F_OK) == 0 ? " (see /proc/sys/kernel/yama/ptrace_scope)" : "");
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

uint64_t field(const char* record, uint64_t offset, size_t size = 8) {
  uint64_t n = 0;
  memcpy(&n, record + offset, size);
  return n;
}

}  // namespace

Target::~Target() {
  resume();
  for (auto& f : files_) close(f.second);
  if (core_ >= 0) close(core_);
}

Trouble Target::open(const char* name) {
  char* end;
  long n = strtol(name, &end, 10);
  Trouble t;
  if (*name && !*end && n > 0) {
    pid_ = static_cast<int>(n);
    t = open_process();
  } else {
    t = open_core(name);
  }
  return t.empty() ? find_library() : t;
}

Trouble Target::open_process() {
  std::string path = "/proc/" + std::to_string(pid_) + "/maps";
  FILE* f = fopen(path.c_str(), "re");
  if (!f) {
    if (errno == ENOENT) return "there is no process " + std::to_string(pid_);
    if (errno == EACCES || errno == EPERM) return no_permission(pid_);
    return "process " + std::to_string(pid_) + ": " + strerror(errno);
  }
  char* line = nullptr;
  size_t size = 0;
  bool any = false;
  errno = 0;
  while (getline(&line, &size, f) > 0) {
    unsigned long low, high, offset, inode;
    int at = 0;
    any = true;
    if (sscanf(line, "%lx-%lx %*s %lx %*s %lu %n", &low, &high, &offset, &inode, &at) < 4) continue;
    std::string name(line + at);
    while (!name.empty() && name.back() == '\n') name.pop_back();
    if ((inode && name[0] == '/') || name == kKernelCode) mappings_.push_back({low, high, offset, name});
  }
  int e = errno;
  free(line);
  fclose(f);
  if (any) return {};
  if (e == ESRCH || kill(pid_, 0) != 0) return "process " + std::to_string(pid_) + " has ended";
  if (e == EACCES || e == EPERM) return no_permission(pid_);
  if (e) return "process " + std::to_string(pid_) + ": " + strerror(e);
  return "process " + std::to_string(pid_) + " has no memory: it has ended, or is the kernel's";
}

const Mapping* Target::mapping_at(uint64_t address) const {
  auto m = std::upper_bound(mappings_.begin(), mappings_.end(), address, [](uint64_t a, const Mapping& m) { return a < m.low; });
  return m != mappings_.begin() && address < (--m)->high ? &*m : nullptr;
}

size_t Target::read_some(uint64_t address, void* to, size_t size) const {
  auto* out = static_cast<char*>(to);
  size_t done = 0;
  while (done < size) {
    uint64_t at = address + done;
    size_t left = size - done;
    ssize_t n = -1;
    if (!is_core()) {
      // Page by page after a failure: one call reads nothing of a range that it cannot read at all.
      iovec ours{out + done, left}, theirs{reinterpret_cast<void*>(at), left};
      n = process_vm_readv(pid_, &ours, 1, &theirs, 1, 0);
    } else {
      auto s = std::upper_bound(segments_.begin(), segments_.end(), at, [](uint64_t a, const Segment& s) { return a < s.address; });
      if (s != segments_.begin() && at < (--s)->address + s->size) {
        n = pread(core_, out + done, std::min<uint64_t>(left, s->address + s->size - at), static_cast<off_t>(s->offset + at - s->address));
      } else {
        // Cores leave out memory that is the same as in its file.
        if (const Mapping* m = mapping_at(at)) {
          auto f = files_.find(m->path);
          if (f == files_.end()) f = files_.emplace(m->path, ::open(m->path.c_str(), O_RDONLY | O_CLOEXEC)).first;
          if (f->second >= 0)
            n = pread(f->second, out + done, std::min<uint64_t>(left, m->high - at), static_cast<off_t>(m->offset + at - m->low));
        }
      }
    }
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

bool Target::read(uint64_t address, void* to, size_t size) const { return read_some(address, to, size) == size; }

const std::string& Target::text(uint64_t address) const {
  auto [known, fresh] = texts_.try_emplace(address);
  std::string& s = known->second;
  if (!fresh) return s;
  char part[64];
  while (s.size() < kMaxName) {
    size_t n = read_some(address + s.size(), part, sizeof part), length = strnlen(part, n);
    s.append(part, length);
    if (length < sizeof part) break;
  }
  return s;
}

// Looks the name up in the object's own tables, as the loader does. Returns 0 if the object has no such symbol.
uint64_t Target::symbol_in_memory(uint64_t base, const char* name) const {
  auto header = get<Elf64_Ehdr>(base);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_machine != kMachine) return 0;
  uint64_t dynamic = 0;
  for (unsigned i = 0; i < header.e_phnum; i++) {
    auto p = get<Elf64_Phdr>(base + header.e_phoff + i * sizeof(Elf64_Phdr));
    if (p.p_type == PT_DYNAMIC) dynamic = base + p.p_vaddr;
  }
  if (!dynamic) return 0;
  uint64_t symbols = 0, strings = 0, hash = 0;
  for (auto d = get<Elf64_Dyn>(dynamic); d.d_tag != DT_NULL; d = get<Elf64_Dyn>(dynamic += sizeof d)) {
    uint64_t value = d.d_un.d_ptr < base ? d.d_un.d_ptr + base : d.d_un.d_ptr;  // the loader has added the base to some
    if (d.d_tag == DT_SYMTAB) symbols = value;
    if (d.d_tag == DT_STRTAB) strings = value;
    if (d.d_tag == DT_GNU_HASH) hash = value;
  }
  if (!symbols || !strings || !hash) return 0;
  struct {
    uint32_t buckets, first, bloom_words, shift;
  } h;
  uint32_t wanted = 5381;
  for (const char* c = name; *c; c++) wanted = wanted * 33 + static_cast<unsigned char>(*c);
  if (!read(hash, &h, sizeof h) || !h.buckets) return 0;
  uint64_t buckets = hash + sizeof h + h.bloom_words * 8, chain = buckets + h.buckets * 4;
  auto i = get<uint32_t>(buckets + wanted % h.buckets * 4);
  if (i < h.first) return 0;
  for (;; i++) {
    auto its = get<uint32_t>(chain + (i - h.first) * 4);
    if ((its | 1) == (wanted | 1)) {
      auto s = get<Elf64_Sym>(symbols + i * sizeof(Elf64_Sym));
      if (text(strings + s.st_name) == name) return base + s.st_value;
    }
    if (its & 1) return 0;
  }
}

Trouble Target::find_library() {
  uint64_t table = 0;
  for (auto& m : mappings_) {
    if (m.offset != 0 || base_name(m.path).find("fiberthread") == std::string::npos) continue;
    // The first read of the process's memory shows whether it is permitted.
    char byte;
    if (!is_core() && !read(m.low, &byte, 1) && (errno == EPERM || errno == EACCES)) return no_permission(pid_);
    if (!(table = symbol_in_memory(m.low, "fiberthread_debug_layout"))) continue;
    library_low_ = m.low;
    for (auto& part : mappings_)
      if (part.path == m.path) library_high_ = std::max(library_high_, part.high);
    break;
  }
  if (!table)
    return is_core() ? "the core is not of a program that runs on fiberthread"
                     : "process " + std::to_string(pid_) + " does not run on fiberthread";
  for (auto e = get<DebugEntry>(table); *e.name; e = get<DebugEntry>(table += sizeof e))
    layout_.emplace(std::string(e.name, strnlen(e.name, sizeof e.name)), e.number);
  if (layout("version") != 1) return "it runs on a version of fiberthread that this command does not know";
  at_ = {layout("record.size"),   layout("record.sp"),        layout("record.tp"),         layout("record.state"),
         layout("record.kernel"), layout("record.id"),        layout("record.name"),       layout("record.start"),
         layout("record.tcb"),    layout("record.stack_low"), layout("record.stack_high"), layout("record.worker"),
         layout("record.bound"),  layout("record.preempted"), layout("record.what"),       layout("record.object"),
         layout("record.owner"),  layout("record.file"),      layout("record.line"),       layout("record.since"),
         layout("frame.size"),    layout("frame.pc")};
  for (auto& saved : kSaved) saved_at_.push_back(layout(saved.name));
  main_record_ = get<uint64_t>(layout("main_fiber"));
  return {};
}

uint64_t Target::layout(const char* name) const {
  auto e = layout_.find(name);
  if (e != layout_.end()) return e->second;
  fprintf(stderr, "fiberthread: the process has another version of the library, which lacks \"%s\" in its table\n", name);
  exit(1);
}

std::vector<WorkerSeen> Target::workers() const {
  std::vector<WorkerSeen> all;
  for (auto w = get<uint64_t>(layout("workers")); w; w = get<uint64_t>(w + layout("worker.next"))) {
    WorkerSeen s;
    s.address = w;
    s.tid = get<int>(w + layout("worker.tid"));
    s.running = get<uint64_t>(w + layout("worker.running"));
    s.idle = get<bool>(w + layout("worker.idle"));
    s.bound = get<uint64_t>(w + layout("worker.bound")) != 0;
    s.slot = get<uint64_t>(w + layout("worker.slot")) != 0;
    s.alive = get<bool>(w + layout("worker.initial")) || get<uint32_t>(w + layout("worker.kernel_tid"));
    s.switches = get<uint64_t>(w + layout("worker.switches"));
    s.parks = get<uint64_t>(w + layout("worker.parks"));
    s.steals = get<uint64_t>(w + layout("worker.steals"));
    s.preemptions = get<uint64_t>(w + layout("worker.preemptions"));
    s.spawned = get<uint64_t>(w + layout("worker.spawned"));
    s.ended = get<uint64_t>(w + layout("worker.ended"));
    all.push_back(s);
    if (all.size() > 100'000) break;  // the list changes faster than we read it
  }
  return all;
}

FiberSeen Target::read_fiber(uint64_t record, const char* b) const {
  FiberSeen f;
  f.record = record;
  f.id = field(b, at_.id, 4);
  f.state = field(b, at_.tcb) ? static_cast<State>(field(b, at_.state, 4)) : State::Done;
  if (f.state > State::Done) f.state = State::Done;
  f.kernel = b[at_.kernel];
  f.bound = field(b, at_.bound) != 0;
  f.preempted = field(b, at_.preempted, 4) != 0;
  memcpy(f.name, b + at_.name, 16);
  f.start = field(b, at_.start);
  f.sp = field(b, at_.sp);
  f.tp = field(b, at_.tp);
  f.stack_low = field(b, at_.stack_low);
  f.stack_high = field(b, at_.stack_high);
  f.what = field(b, at_.what);
  f.object = field(b, at_.object);
  f.owner = field(b, at_.owner);
  f.file = field(b, at_.file);
  f.line = static_cast<int>(field(b, at_.line, 4));
  f.since = field(b, at_.since);
  f.worker = field(b, at_.worker);
  f.main = record == main_record_;
  return f;
}

FiberSeen Target::fiber(uint64_t record) const {
  std::vector<char> bytes(at_.size);
  if (!record || !read(record, bytes.data(), bytes.size())) return {};
  return read_fiber(record, bytes.data());
}

void Target::each_fiber(void (*visit)(void*, const FiberSeen&), void* data) const {
  main_record_ = get<uint64_t>(layout("main_fiber"));
  FiberSeen main = fiber(main_record_);
  auto show = [&](const FiberSeen& f) {
    if (f.state != State::Done) visit(data, f);
  };
  if (main.record && !get<uint64_t>(main.record + layout("record.block"))) show(main);
  uint64_t size = at_.size, per_extent = layout("extent.records");
  std::vector<char> bytes(size * per_extent);
  uint64_t chunks = layout("chunks");
  auto count = get<uint32_t>(layout("chunk_count"));
  for (uint32_t c = 0; c < count; c++) {
    uint64_t chunk = chunks + c * layout("chunk.size");
    auto records = get<uint64_t>(chunk + layout("chunk.records")), extents = get<uint64_t>(chunk + layout("chunk.extents"));
    auto blocks = get<uint32_t>(chunk + layout("chunk.blocks")), opened = get<uint32_t>(chunk + layout("chunk.opened"));
    for (uint32_t e = 0; e < opened; e++) {
      uint64_t n = std::min<uint64_t>(per_extent, blocks - e * per_extent);
      uint64_t all = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
      if (get<uint64_t>(extents + e * layout("extent.size") + layout("extent.unborn")) == all) continue;
      uint64_t first = records + e * per_extent * size;
      size_t got = read_some(first, bytes.data(), n * size) / size;
      for (size_t i = 0; i < got; i++) show(read_fiber(first + i * size, &bytes[i * size]));
    }
  }
}

WaitView Target::wait_of(const FiberSeen& f, FiberSeen& owner) const {
  WaitView w;
  std::string what = text(f.what);
  static std::map<std::string, std::string> kept;  // WaitView::what points into it
  uint64_t object = f.object, owner_record = f.owner;
  if (what == "cond") {
    bool requeued = get<bool>(object + layout("waiter.requeued"));
    object = get<uint64_t>(object + layout("waiter.address"));
    if (requeued) what = "mutex";
  }
  if (what == "mutex") {
    owner_record = get<uint64_t>(object) & ~uint64_t{1};
    FiberSeen o = fiber(owner_record);
    uint64_t mutex = object - layout("mutex.word");
    auto tid = get<int32_t>(mutex + layout("mutex.tid"));
    // The library's own mutexes are only a word, and have no tid beside it.
    constexpr int kFirstTid = 1 << 22, kLastTid = 1 << 30, kInconsistent = 0x7fffffff;
    bool same = tid == static_cast<int>(o.id) || tid == kInconsistent;
    if (owner_record && (same || (tid >= kFirstTid && tid <= kLastTid))) {
      object = mutex;
      if (!same) owner_record = 0;  // the owner has ended, and another fiber has the record
    }
  } else if (!what.compare(0, 6, "rwlock") && get<uint32_t>(object) & 1) {
    auto tid = get<uint32_t>(object + layout("rwlock.tid"));
    if (ids_.empty()) each_fiber([&](const FiberSeen& other) { ids_[other.id] = other.record; });
    if (auto found = ids_.find(tid); found != ids_.end()) owner_record = found->second;
  } else if (what == "descriptor") {  // a number, and no address; -1 in a poll of none
    auto fd = static_cast<int64_t>(object);
    what = fd < 0 ? "a signal, or the end of its time" : "descriptor " + std::to_string(fd);
    object = 0;
  }
  w.what = kept.emplace(what, what).first->first.c_str();
  w.object = reinterpret_cast<const void*>(object);
  if (!owner_record) return w;
  owner = fiber(owner_record);
  if (!owner.record || !owner.id) return w;
  w.for_its_end = object == owner_record;
  w.owned = owner_record == f.record ? w.Itself : owner.state == State::Done ? w.Ended : w.Other;
  w.owner = {owner.id, owner.name, owner.main};
  return w;
}

uint64_t Target::now() const {
  if (is_core()) return counter("recent_ns");
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

Registers Target::saved_registers(const FiberSeen& f) const {
  Registers r;
  std::vector<char> frame(at_.frame);
  if (!read(f.sp, frame.data(), frame.size())) return r;
  for (size_t i = 0; i < std::size(kSaved); i++) r.set(kSaved[i].number, field(frame.data(), saved_at_[i]));
  r.pc = field(frame.data(), at_.frame_pc);
  r.set(kStackPointer, f.sp + at_.frame);
  if (kPcNumber) r.set(kPcNumber, r.pc);
  return r;
}

Registers Target::sample(FiberSeen& fiber, std::vector<char>& stack) const {
  Registers r;
  uint64_t at = layout("sample"), known = get<uint64_t>(at + layout("sample.known"));
  for (unsigned i = 0; i < Registers::kCount; i++)
    if (known >> i & 1) r.set(i, get<uint64_t>(at + layout("sample.registers") + i * 8));
  r.pc = get<uint64_t>(at + layout("sample.pc"));
  fiber.id = get<uint64_t>(at + layout("sample.fiber"));
  fiber.main = get<bool>(at + layout("sample.main"));
  read(at + layout("sample.name"), fiber.name, sizeof fiber.name - 1);
  stack.resize(std::min<uint64_t>(get<uint64_t>(at + layout("sample.stack_size")), 1 << 20));
  stack.resize(read_some(at + layout("sample.stack"), stack.data(), stack.size()));
  return r;
}

}  // namespace fiberthread
