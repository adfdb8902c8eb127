// SPDX-License-Identifier: MIT
#include "preload/launcher/elf_symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace fiberthread {

std::string demangled(const char* name) {
  int status;
  char* plain = strncmp(name, "_Z", 2) ? nullptr : abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string s = plain ? plain : name;
  free(plain);
  return s;
}

std::string ElfSymbols::function(uint64_t address) {
  const Mapping* m = target_.mapping_at(address);
  if (!m) return {};
  auto [found, fresh] = objects_.try_emplace(m->path);
  Object& o = found->second;
  if (fresh) o = read(m->path);
  uint64_t in_file = m->offset + (address - m->low);
  for (auto& part : o.parts) {
    if (in_file < part.offset || in_file - part.offset >= part.high - part.low) continue;
    uint64_t own = part.low + in_file - part.offset;
    auto f = std::upper_bound(o.functions.begin(), o.functions.end(), own, [](uint64_t a, const Function& f) { return a < f.address; });
    if (f != o.functions.begin() && own - (--f)->address < f->size) return f->name;
  }
  return {};
}

ElfSymbols::Object ElfSymbols::read(const std::string& path) {
  Object o;
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return o;
  struct stat st;
  size_t size = fstat(fd, &st) == 0 ? static_cast<size_t>(st.st_size) : 0;
  void* all = size >= sizeof(Elf64_Ehdr) ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (all == MAP_FAILED) return o;
  auto* bytes = static_cast<const char*>(all);
  // Returns false for what does not lie in the file.
  auto take = [&](uint64_t at, void* to, uint64_t n) {
    if (at > size || size - at < n) return false;
    memcpy(to, bytes + at, n);
    return true;
  };
  Elf64_Ehdr header;
  take(0, &header, sizeof header);
  bool right = !memcmp(header.e_ident, ELFMAG, SELFMAG) && header.e_ident[EI_CLASS] == ELFCLASS64;
  Elf64_Phdr p;
  for (unsigned i = 0; right && i < header.e_phnum && take(header.e_phoff + i * sizeof p, &p, sizeof p); i++)
    if (p.p_type == PT_LOAD) o.parts.push_back({p.p_vaddr, p.p_vaddr + p.p_filesz, p.p_offset, {}});
  Elf64_Shdr s, table{}, names;
  for (unsigned i = 0; right && i < header.e_shnum && take(header.e_shoff + i * sizeof s, &s, sizeof s); i++)
    if (s.sh_type == SHT_SYMTAB || (s.sh_type == SHT_DYNSYM && !table.sh_type)) table = s;
  if (table.sh_type && take(header.e_shoff + table.sh_link * sizeof names, &names, sizeof names) && names.sh_offset <= size &&
      names.sh_size <= size - names.sh_offset) {
    Elf64_Sym symbol;
    for (uint64_t at = 0; at < table.sh_size && take(table.sh_offset + at, &symbol, sizeof symbol); at += sizeof symbol) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !symbol.st_shndx || symbol.st_name >= names.sh_size) continue;
      const char* name = bytes + names.sh_offset + symbol.st_name;
      o.functions.push_back({symbol.st_value, symbol.st_size, std::string(name, strnlen(name, names.sh_size - symbol.st_name))});
    }
  }
  munmap(all, size);
  // Of two names of one address, the one with the larger size is looked at.
  std::sort(o.functions.begin(), o.functions.end(),
            [](auto& a, auto& b) { return a.address != b.address ? a.address < b.address : a.size < b.size; });
  return o;
}

}  // namespace fiberthread
