// SPDX-License-Identifier: MIT
#include "sched/glibc/modules.h"

#include <link.h>
#include <sys/mman.h>

#include "sched/fiber.h"
#include "sched/glibc/processor.h"
#include "sched/spinlock.h"

namespace fiberthread {

bool object_contains(const dl_phdr_info& object, const void* address) {
  for (int i = 0; i < object.dlpi_phnum; i++) {
    auto& ph = object.dlpi_phdr[i];
    if (ph.p_type == PT_LOAD && reinterpret_cast<uintptr_t>(address) - (object.dlpi_addr + ph.p_vaddr) < ph.p_memsz) return true;
  }
  return false;
}

namespace glibc {

Module libc_tls;
std::atomic<uint64_t> modules_changes{1};
std::atomic<int> loading{0};

namespace {

// All modules with static TLS but libc and this library. Their images are copies, since a dlclose may take the true ones away at any time.
struct Modules {
  unsigned long long generation;  // the loader's count of changes
  size_t size;                    // of this mapping
  unsigned count, room;
  size_t bytes;  // of images
  Module module[];
};
SpinLock modules_lock;
Modules* modules = nullptr;  // under modules_lock; never null once it has been read
// How many of modules_changes the list in use has seen. It is raised only after that list is published, so nobody takes an old list for
// a new one.
std::atomic<uint64_t> modules_seen{0};

// Calls visit.module() for each module whose static TLS fibers have set back, and visit.generation() with the loader's count of changes.
// Notes libc's own module in `libc_tls`.
template <class Visit>
void each_module(Visit visit) {
  auto look = [](dl_phdr_info* info, size_t, void* data) {
    auto& v = *static_cast<Visit*>(data);
    v.generation(info->dlpi_adds + info->dlpi_subs);
    if (!info->dlpi_tls_modid) return 0;
    bool ours = object_contains(*info, &layout), libc = object_contains(*info, layout.keys);
    for (int i = 0; i < info->dlpi_phnum; i++) {
      auto& ph = info->dlpi_phdr[i];
      ptrdiff_t offset;
      if (ph.p_type != PT_TLS || !static_offset(info->dlpi_tls_modid, offset)) continue;
      Module m{offset, reinterpret_cast<void*>(info->dlpi_addr + ph.p_vaddr), ph.p_filesz, ph.p_memsz};
      if (libc) libc_tls = m;
      else if (!ours) v.module(m);
    }
    return 0;
  };
  dl_iterate_phdr(look, &visit);
}

// Counts the modules, and the bytes of their images.
struct Measure {
  unsigned* count;
  size_t* bytes;
  void generation(unsigned long long) {}
  void module(const Module& m) {
    *count += 1;
    *bytes += m.file_size;
  }
};

struct Copy {
  Modules* to;
  char* image;
  char* end;
  bool* whole;
  void generation(unsigned long long g) { to->generation = g; }
  void module(const Module& m) {
    if (to->count == to->room || static_cast<size_t>(end - image) < m.file_size) {
      *whole = false;  // more were loaded meanwhile
      return;
    }
    memcpy(image, m.image, m.file_size);
    to->module[to->count++] = {m.offset, image, m.file_size, m.mem_size};
    image += m.file_size;
  }
};

// Returns a new list in a mapping of its own, or null without memory. Sets *whole to whether the list has all modules.
Modules* read_modules(bool* whole) {
  unsigned count = 4;  // more may be loaded before the second look
  size_t bytes = 4096;
  each_module(Measure{&count, &bytes});
  size_t size = sizeof(Modules) + count * sizeof(Module) + bytes;
  char* mem = map_memory(size, PROT_READ | PROT_WRITE);
  if (!mem) return nullptr;
  auto* fresh = reinterpret_cast<Modules*>(mem);
  fresh->size = size;
  fresh->room = count;
  fresh->bytes = bytes;
  *whole = true;
  char* images = reinterpret_cast<char*>(&fresh->module[count]);
  each_module(Copy{fresh, images, images + bytes, whole});
  return fresh;
}

}  // namespace

bool static_offset(size_t modid, ptrdiff_t& offset, bool check) {
  auto read = [check](char* p, auto& value) {
    if (check) return read_word(p, value);
    memcpy(&value, p, sizeof value);
    return true;
  };
  size_t first = 0, len, id;
  char *list, *map;
  for (bool ok = read(layout.slotinfo_list, list); ok && list; ok = read(list + layout.slotinfo_next, list)) {
    if (!read(list + layout.slotinfo_len, len) || len == 0) return false;
    if (modid - first >= len) {
      first += len;
      continue;
    }
    ptrdiff_t l_tls_offset;
    char* entry = list + layout.slotinfo_array + (modid - first) * layout.sizeof_slotinfo;
    return read(entry + layout.slotinfo_map, map) && map && read(map + layout.map_modid, id) && id == modid &&
           read(map + layout.map_offset, l_tls_offset) && static_tls_offset(l_tls_offset, offset);
  }
  return false;
}

void reset_static_tls(char* tp) {
  SpinGuard guard(modules_lock);
  for (unsigned i = 0; modules && i < modules->count; i++) {
    auto& m = modules->module[i];
    memcpy(tp + m.offset, m.image, m.file_size);
    memset(tp + m.offset + m.file_size, 0, m.mem_size - m.file_size);
  }
}

// `loading` stays as it is. If a constructor has forked, its dlopen ends in the child too. The dlopens of other threads never end there,
// which costs the child time only.
void forget_modules_after_fork() {
  modules_changes.fetch_add(1);
  modules_lock.reset();
}

}  // namespace glibc

void tcb_look_at_modules() {
  using namespace glibc;
  if (modules_seen.load(std::memory_order_acquire) == modules_changes.load(std::memory_order_acquire) &&
      !loading.load(std::memory_order_relaxed))
    return;
  uint64_t changes = modules_changes.load(std::memory_order_acquire);
  bool whole;
  Modules* fresh = read_modules(&whole);
  if (!fresh) return;
  Modules* old = fresh;
  {
    Busy busy;
    SpinGuard guard(modules_lock);
    if (!modules || fresh->generation >= modules->generation) {
      old = modules;
      modules = fresh;
    }
    if (whole && modules_seen.load(std::memory_order_relaxed) < changes) modules_seen.store(changes, std::memory_order_release);
  }
  if (old) unmap_memory(old, old->size);
}

void tcb_modules_change() { glibc::loading.fetch_add(1, std::memory_order_relaxed); }

// The count goes up before `loading` goes down, so each look sees one of the two.
void tcb_modules_changed() {
  glibc::modules_changes.fetch_add(1, std::memory_order_release);
  glibc::loading.fetch_sub(1, std::memory_order_release);
}

}  // namespace fiberthread
