// For the unwinder of a compiler whose libc has _dl_find_object, with a release that has not (before 2.35); see tests/glibc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

struct search {
  ElfW(Addr) pc;
  struct dl_find_object* found;
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
  if (!inside || !frames) return inside ? -1 : 0;
  s->found->dlfo_map_start = (void*)low;
  s->found->dlfo_map_end = (void*)high;
  s->found->dlfo_eh_frame = (void*)frames;
  return 1;
}

int _dl_find_object(void* pc, struct dl_find_object* found) {
  struct search s = {(ElfW(Addr))pc, found};
  return dl_iterate_phdr(look, &s) == 1 ? 0 : -1;
}
