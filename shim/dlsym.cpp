// SPDX-License-Identifier: MIT
// dlsym and dlvsym. A program that asks libc's handle for pthread_create, or names a version (ours have none), would get libc's function.
// It would then make threads or lock mutexes behind our back, since the loader prefers us in the global scope only. So if libc's function
// would be found, and we serve that name, the caller gets ours. There are two exceptions. We ourselves get the function behind ours. And if
// a library between us and libc has a function of that name, the caller does not get ours. Ours may call that function, which asks here for
// the next one and must not get ours again.
//
// The loader judges by its caller's return address (RTLD_NEXT, RTLD_DEFAULT). So for what we do not answer, we jump to it
// (sched/arch/<cpu>/posix/dlsym.S), with nothing of ours on the stack.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include <atomic>

#include "sched/fiber.h"
#include "sched/large.h"
#include "sched/syscall.h"

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);

// In sched/arch/<cpu>/posix/dlsym.S.
extern "C" {
// The functions behind ours: libc's, or those of another preloaded library. Set by fiberthread_dl_ours().
__attribute__((visibility("hidden"))) Dlsym fiberthread_next_dlsym = nullptr;
__attribute__((visibility("hidden"))) Dlvsym fiberthread_next_dlvsym = nullptr;
// Returns the answer if it is ours, else null. `version` is null in dlsym().
__attribute__((visibility("hidden"))) void* fiberthread_dl_ours(void* handle, const char* name, const char* version, const void* caller);
}

namespace fiberthread {
namespace {

// Does what strcmp would. A sanitizer may have taken over libc's, and asks us for functions as it starts. The barrier keeps the compiler
// from calling strcmp.
bool same(const char* a, const char* b) {
  for (; *a && *a == *b; a++, b++) asm volatile("" ::: "memory");
  return *a == *b;
}

uint32_t gnu_hash(const char* name) {
  uint32_t h = 5381;
  for (; *name; name++) h = h * 33 + static_cast<unsigned char>(*name);
  return h;
}

// Returns the function of that name which an object defines, of its default version if there are several. This is done by hand, since
// asking the loader would be asking ourselves.
void* defined_by(uintptr_t base, const ElfW(Dyn) * d, const char* name, uint32_t hash) {
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  const uint32_t* table = nullptr;
  const ElfW(Half)* versions = nullptr;
  for (; d && d->d_tag != DT_NULL; d++) {
    uintptr_t at = d->d_un.d_ptr < base ? d->d_un.d_ptr + base : d->d_un.d_ptr;  // relocated in most objects
    if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
    if (d->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(at);
    if (d->d_tag == DT_GNU_HASH) table = reinterpret_cast<const uint32_t*>(at);
    if (d->d_tag == DT_VERSYM) versions = reinterpret_cast<const ElfW(Half)*>(at);
  }
  if (!symbols || !strings || !table) return nullptr;
  uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
  const uint32_t* bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof *table);
  const uint32_t* chain = bucket + buckets;
  uint32_t i = buckets ? bucket[hash % buckets] : 0;
  if (i < first) return nullptr;
  void* found = nullptr;
  for (;; i++) {
    uint32_t h = chain[i - first];
    const ElfW(Sym)& s = symbols[i];
    if ((h | 1) == (hash | 1) && s.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(s.st_info) == STT_FUNC && same(strings + s.st_name, name)) {
      found = reinterpret_cast<void*>(base + s.st_value);
      if (!versions || !(versions[i] & 0x8000)) return found;  // not hidden behind a newer one
    }
    if (h & 1) return found;
  }
}

// The objects from the program to libc, in the order in which the loader looks at those of the global scope. They stay as long as the
// process, so this needs no loader's lock to look at them. In the child of a fork that lock might be taken for ever.
struct Object {
  uintptr_t base;
  const ElfW(Phdr) * headers;
  int header_count;
  const ElfW(Dyn) * dynamic;

  bool contains(const void* address) const {
    auto at = reinterpret_cast<uintptr_t>(address) - base;
    for (int i = 0; i < header_count; i++)
      if (headers[i].p_type == PT_LOAD && at - headers[i].p_vaddr < headers[i].p_memsz) return true;
    return false;
  }
  void* defines(const char* name, uint32_t hash) const { return defined_by(base, dynamic, name, hash); }
  // Returns true if the object has only a table of the old kind, in which we do not look.
  bool is_secret() const {
    for (const ElfW(Dyn)* d = dynamic; d && d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_GNU_HASH) return false;
    return dynamic != nullptr;
  }
};
constexpr int kMost = 512;  // with more objects, the loader answers for itself
FIBERTHREAD_LARGE Object objects[kMost];
int count = 0;  // the last one is libc
Object* us = nullptr;
link_map* libc = nullptr;

int add_object(dl_phdr_info* o, size_t, void* p) {
  auto vdso = *static_cast<uintptr_t*>(p);
  if (vdso && o->dlpi_addr == vdso) return 0;
  if (count == kMost) return 1;
  Object& a = objects[count++] = {o->dlpi_addr, o->dlpi_phdr, o->dlpi_phnum, nullptr};
  for (int i = 0; i < a.header_count; i++)
    if (a.headers[i].p_type == PT_DYNAMIC) a.dynamic = reinterpret_cast<const ElfW(Dyn)*>(a.base + a.headers[i].p_vaddr);
  if (a.contains(reinterpret_cast<const void*>(&add_object))) us = &a;
  return a.dynamic == libc->l_ld;
}

// Finds libc by its name. Any of its functions may be the program's own, or have its address in the program.
link_map* find_libc() {
  Dl_info info;
  link_map* m = nullptr;
  if (!dladdr1(reinterpret_cast<const void*>(&add_object), &info, reinterpret_cast<void**>(&m), RTLD_DL_LINKMAP)) return nullptr;
  while (m->l_prev) m = m->l_prev;
  for (; m; m = m->l_next) {
    const char* name = m->l_name;
    for (const char* p = name; *p; p++)
      if (*p == '/') name = p + 1;
    if (same(name, "libc.so.6")) return m;
  }
  return nullptr;
}

char* (*next_dlerror)() = nullptr;
std::atomic<bool> ready{false};
std::atomic_flag busy;  // not a SpinLock: a sanitizer's build checks that code too, before the sanitizer is ready

template <class F>
F of_libc(const char* name) {
  return reinterpret_cast<F>(defined_by(libc->l_addr, libc->l_ld, name, gnu_hash(name)));
}

// Called at the start of the process, or at an earlier request.
void get_ready() {
  while (busy.test_and_set(std::memory_order_acquire)) {
  }
  if (ready.load(std::memory_order_relaxed)) return busy.clear(std::memory_order_release);
  libc = find_libc();
  if (!libc) {
    constexpr char kWhy[] = "fiberthread: there is no libc.so.6\n";
    raw_syscall(SYS_write, 2, arg(kWhy), sizeof kWhy - 1);
    abort();
  }
  // Takes libc's, since a program's own may ask for the next one here.
  auto each_object = of_libc<decltype(&dl_iterate_phdr)>("dl_iterate_phdr");
  uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);
  each_object(add_object, &vdso);
  next_dlerror = of_libc<decltype(next_dlerror)>("dlerror");
  auto libcs = of_libc<Dlsym>("dlsym");
  fiberthread_next_dlvsym = reinterpret_cast<Dlvsym>(libcs(RTLD_NEXT, "dlvsym"));
  fiberthread_next_dlsym = reinterpret_cast<Dlsym>(libcs(RTLD_NEXT, "dlsym"));
  ready.store(true, std::memory_order_release);
  busy.clear(std::memory_order_release);
}

// Returns true if the answer is not ours to give.
bool others_have_it(const char* name, uint32_t hash, const void* caller, bool next) {
  bool asked = false;
  for (const Object* o = objects; o < objects + count - 1; o++) {
    if (o != us && (o > us || (next && asked)) && (o->is_secret() || o->defines(name, hash))) return true;
    asked |= o->contains(caller);
  }
  return false;
}

// Answers our own requests, always with the default version, and without the loader's lock. A constructor that dlopen() runs has that lock,
// and may wait for a thread that comes here. With libc's own threads that works.
void* behind_us(const char* name, uint32_t hash) {
  for (const Object* o = us + 1; o < objects + count; o++) {
    if (o->is_secret()) return nullptr;
    if (void* found = o->defines(name, hash)) return found;
  }
  return nullptr;
}

[[gnu::constructor]] void look_around() {
  if (!ready.load(std::memory_order_acquire)) get_ready();
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

void* fiberthread_dl_ours(void* handle, const char* name, const char* version, const void* caller) {
  look_around();
  if (handle == RTLD_DEFAULT && !version) return nullptr;  // the loader finds us by itself
  uint32_t hash = gnu_hash(name);
  const Object& last = objects[count - 1];
  if (!us || us == &last || last.dynamic != libc->l_ld) return nullptr;
  if (us->contains(caller)) return handle == RTLD_NEXT ? behind_us(name, hash) : nullptr;
  void *ours = us->defines(name, hash), *libcs = ours ? last.defines(name, hash) : nullptr;
  bool next = handle == RTLD_NEXT;
  if (!libcs || others_have_it(name, hash, caller, next)) return nullptr;
  void* found = libcs;
  bool by_handle = !next && handle != RTLD_DEFAULT;
  // The next function after ours is libc's. The handle of libc is no way to ask for it. Until a program opens that handle, it has no
  // objects, and the loader crashes.
  if (version) found = fiberthread_next_dlvsym(by_handle ? handle : RTLD_NEXT, name, version);
  else if (by_handle) found = fiberthread_next_dlsym(handle, name);
  if (!found || !last.contains(found)) return nullptr;
  // The meaning of an older version is not known, except for condition variables. Those are as large, and as zero when new.
  if (version && found != libcs) {
    for (const char *cond = "pthread_cond_", *n = name; *cond; cond++, n++)
      if (*n != *cond) return nullptr;
  }
  if (!version && !by_handle) next_dlerror();  // libc's dlsym would have forgotten an earlier error
  return ours;
}
