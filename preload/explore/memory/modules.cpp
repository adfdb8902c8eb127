// SPDX-License-Identifier: MIT
#include "preload/explore/memory/modules.h"

#include <link.h>

namespace fiberthread {
namespace {

struct {
  uintptr_t low, high;
} modules[256];
uint32_t module_count = 0;

}  // namespace

void module_instrumented(uintptr_t pc) {
  if (module_count == sizeof modules / sizeof *modules || is_instrumented(pc)) return;
  dl_iterate_phdr(
      [](dl_phdr_info* o, size_t, void* data) {
        uintptr_t pc = *static_cast<uintptr_t*>(data), low = UINTPTR_MAX, high = 0;
        for (int i = 0; i < o->dlpi_phnum; i++) {
          auto& h = o->dlpi_phdr[i];
          if (h.p_type != PT_LOAD) continue;
          if (o->dlpi_addr + h.p_vaddr < low) low = o->dlpi_addr + h.p_vaddr;
          if (o->dlpi_addr + h.p_vaddr + h.p_memsz > high) high = o->dlpi_addr + h.p_vaddr + h.p_memsz;
        }
        if (pc < low || pc >= high) return 0;
        modules[module_count++] = {low, high};
        return 1;
      },
      &pc);
}

bool is_instrumented(uintptr_t pc) {
  for (uint32_t i = 0; i < module_count; i++)
    if (pc >= modules[i].low && pc < modules[i].high) return true;
  return false;
}

}  // namespace fiberthread
