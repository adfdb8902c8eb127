// SPDX-License-Identifier: MIT
#include "sched/glibc/go.h"

#include <link.h>
#include <string.h>

#include "sched/glibc/modules.h"

namespace fiberthread {

std::atomic<bool> tcb_go_found{false};

namespace {

std::atomic<uint64_t> go_looked_at{0};  // the value of modules_changes at the last look, plus one

// Go's linker writes a note of type 4 and name "Go" into each object.
int has_go(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& h = info->dlpi_phdr[i];
    if (h.p_type != PT_NOTE) continue;
    auto* p = reinterpret_cast<const char*>(info->dlpi_addr + h.p_vaddr);
    for (const char* end = p + h.p_memsz; p + sizeof(ElfW(Nhdr)) <= end;) {
      auto* note = reinterpret_cast<const ElfW(Nhdr)*>(p);
      if (note->n_type == 4 && note->n_namesz == 4 && memcmp(note + 1, "Go\0", 4) == 0) return 1;
      auto round = [](size_t n) { return (n + 3) & ~size_t{3}; };
      p += sizeof *note + round(note->n_namesz) + round(note->n_descsz);
    }
  }
  return 0;
}

}  // namespace

bool tcb_go_is_loaded() {
  using namespace glibc;
  if (tcb_go_found.load(std::memory_order_relaxed)) return true;
  uint64_t now = modules_changes.load(std::memory_order_acquire) + 1;
  if (__builtin_expect(!loading.load(std::memory_order_relaxed) && go_looked_at.load(std::memory_order_relaxed) == now, 1)) return false;
  if (dl_iterate_phdr(has_go, nullptr)) tcb_go_found.store(true, std::memory_order_relaxed);
  go_looked_at.store(now, std::memory_order_relaxed);
  return tcb_go_found.load(std::memory_order_relaxed);
}

}  // namespace fiberthread
