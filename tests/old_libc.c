// SPDX-License-Identifier: MIT
// Functions of libc that this machine's libgcc and libstdc++ need, for releases that do not have them yet. tests/glibc compiles this with
// the headers of such a release.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <sys/random.h>

#if !__GLIBC_PREREQ(2, 35)
struct found {
  unsigned long long flags;
  void *start, *end;
  struct link_map* module;
  void* frames;
};
struct search {
  ElfW(Addr) pc;
  struct found* found;
};

static int look(struct dl_phdr_info* info, size_t size, void* arg) {
  struct search* s = arg;
  int inside = 0;
  ElfW(Addr) low = -1, high = 0, frames = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)* p = &info->dlpi_phdr[i];
    ElfW(Addr) from = info->dlpi_addr + p->p_vaddr, to = from + p->p_memsz;
    if (p->p_type == PT_GNU_EH_FRAME) frames = from;
    if (p->p_type != PT_LOAD) continue;
    inside |= s->pc >= from && s->pc < to;
    if (from < low) low = from;
    if (to > high) high = to;
  }
  if (!inside) return 0;
  if (!frames) return -1;
  s->found->start = (void*)low;
  s->found->end = (void*)high;
  s->found->frames = (void*)frames;
  return 1;
}

int _dl_find_object(void* pc, struct found* found) {
  struct search s = {(ElfW(Addr))pc, found};
  return dl_iterate_phdr(look, &s) == 1 ? 0 : -1;
}
#endif

#if !__GLIBC_PREREQ(2, 36)
unsigned arc4random(void) {
  unsigned n;
  if (getrandom(&n, sizeof n, 0) != sizeof n) abort();
  return n;
}
#endif

#if !__GLIBC_PREREQ(2, 38)
long __isoc23_strtol(const char* s, char** end, int base) { return strtol(s, end, base); }
unsigned long __isoc23_strtoul(const char* s, char** end, int base) { return strtoul(s, end, base); }
long long __isoc23_strtoll(const char* s, char** end, int base) { return strtoll(s, end, base); }
unsigned long long __isoc23_strtoull(const char* s, char** end, int base) { return strtoull(s, end, base); }
#endif
