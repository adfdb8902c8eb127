// SPDX-License-Identifier: MIT
#include "preload/launcher/target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/procfs.h>
#include <sys/user.h>
#include <unistd.h>

#include <algorithm>

#include "sched/arch/arch.h"
#include FIBERTHREAD_CPU(registers.h)

namespace fiberthread {
namespace {
uint64_t word(const char* notes, uint64_t offset) {
  uint64_t n;
  memcpy(&n, notes + offset, sizeof n);
  return n;
}
}  // namespace

Trouble Target::open_core(const char* path) {
  core_ = ::open(path, O_RDONLY | O_CLOEXEC);
  if (core_ < 0) return std::string(path) + ": " + strerror(errno);
  Elf64_Ehdr header;
  bool is_elf = pread(core_, &header, sizeof header, 0) == sizeof header && !memcmp(header.e_ident, ELFMAG, SELFMAG);
  if (!is_elf || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_CORE)
    return std::string(path) + " is no core of a 64-bit process";
  if (header.e_machine != kMachine) return std::string(path) + " is a core of another kind of machine";
  uint64_t count = header.e_phnum;
  if (count == PN_XNUM) {  // the true number stands in the first section
    Elf64_Shdr first;
    if (pread(core_, &first, sizeof first, static_cast<off_t>(header.e_shoff)) == sizeof first) count = first.sh_info;
  }
  std::vector<Elf64_Phdr> headers(count);
  uint64_t kernel_code = 0;
  auto bytes = static_cast<ssize_t>(count * sizeof(Elf64_Phdr));
  if (pread(core_, headers.data(), static_cast<size_t>(bytes), static_cast<off_t>(header.e_phoff)) != bytes)
    return std::string(path) + " is cut off";
  for (auto& p : headers) {
    if (p.p_type == PT_LOAD && p.p_filesz) segments_.push_back({p.p_vaddr, p.p_filesz, p.p_offset});
    if (p.p_type != PT_NOTE) continue;
    std::vector<char> notes(p.p_filesz);
    if (pread(core_, notes.data(), notes.size(), static_cast<off_t>(p.p_offset)) != static_cast<ssize_t>(notes.size()))
      return std::string(path) + " is cut off";
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      Elf64_Nhdr note;
      memcpy(&note, &notes[at], sizeof note);
      size_t data = at + sizeof note + ((note.n_namesz + 3) & ~3u);
      at = data + ((note.n_descsz + 3) & ~3u);
      if (at > notes.size()) break;
      const char* d = &notes[data];
      if (note.n_type == NT_PRSTATUS && note.n_descsz >= sizeof(elf_prstatus)) {
        elf_prstatus status;
        memcpy(&status, d, sizeof status);
        user_regs_struct regs;
        static_assert(sizeof regs == sizeof status.pr_reg);
        memcpy(&regs, &status.pr_reg, sizeof regs);
        core_threads_.push_back({status.pr_pid, registers_of(regs), thread_pointer_in(regs)});
      } else if (kThreadPointerNote && note.n_type == kThreadPointerNote && note.n_descsz >= 8 && !core_threads_.empty()) {
        memcpy(&core_threads_.back().thread_pointer, d, 8);
      } else if (note.n_type == NT_PRPSINFO && note.n_descsz >= sizeof(elf_prpsinfo)) {
        elf_prpsinfo info;
        memcpy(&info, d, sizeof info);
        pid_ = info.pr_pid;
      } else if (note.n_type == NT_AUXV) {
        for (uint64_t i = 0; i + sizeof(Elf64_auxv_t) <= note.n_descsz; i += sizeof(Elf64_auxv_t))
          if (word(d, i) == AT_SYSINFO_EHDR) kernel_code = word(d, i + 8);
      } else if (note.n_type == NT_FILE && note.n_descsz >= 16) {
        uint64_t files = word(d, 0), page = word(d, 8);
        if (files > note.n_descsz / 24) continue;
        const char *name = d + 16 + files * 24, *end = d + note.n_descsz;
        for (uint64_t i = 0; i < files && name < end; i++) {
          const char* entry = d + 16 + i * 24;
          size_t length = strnlen(name, static_cast<size_t>(end - name));
          mappings_.push_back({word(entry, 0), word(entry, 8), word(entry, 16) * page, std::string(name, length)});
          name += length + 1;
        }
      }
    }
  }
  std::sort(segments_.begin(), segments_.end(), [](auto& a, auto& b) { return a.address < b.address; });
  for (auto& s : segments_)
    if (s.address == kernel_code) mappings_.push_back({s.address, s.address + s.size, 0, kKernelCode});
  std::sort(mappings_.begin(), mappings_.end(), [](auto& a, auto& b) { return a.low < b.low; });
  return {};
}

}  // namespace fiberthread
