// dlsym and dlvsym. Who asks libc's handle for pthread_create, or names a version (ours have none), would get libc's and make threads or
// lock mutexes behind our back: the loader prefers us in the global scope only. So where libc's function would be found, and it is one
// that we serve, ours is given. Not to ourselves, for we want libc's; and not if a library between us and libc has a function of that
// name as well: ours may call that one, which asks for the next one here, and must not get us again.
//
// The loader judges by its caller's return address (RTLD_NEXT, RTLD_DEFAULT). So what we do not answer is jumped to (dlsym_<arch>.S), with
// nothing of ours on the stack.
#include <dlfcn.h>
#include <elf.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sys/auxv.h>

#include <atomic>

using Dlsym = void* (*)(void* handle, const char* name);
using Dlvsym = void* (*)(void* handle, const char* name, const char* version);

// dlsym_<arch>.S
extern "C" {
// What stands behind ours: libc's, or another preloaded library's. Set by fiberthread_dl_ours().
__attribute__((visibility("hidden"))) Dlsym fiberthread_next_dlsym = nullptr;
__attribute__((visibility("hidden"))) Dlvsym fiberthread_next_dlvsym = nullptr;
// The answer if it is ours, else null. `version` is null in dlsym().
__attribute__((visibility("hidden"))) void* fiberthread_dl_ours(void* handle, const char* name, const char* version, const void* caller);
}

namespace fiberthread {
namespace {

bool contains(const dl_phdr_info* o, const void* address) {
  auto at = reinterpret_cast<uintptr_t>(address) - o->dlpi_addr;
  for (int i = 0; i < o->dlpi_phnum; i++)
    if (o->dlpi_phdr[i].p_type == PT_LOAD && at - o->dlpi_phdr[i].p_vaddr < o->dlpi_phdr[i].p_memsz) return true;
  return false;
}

// Not libc's, which a sanitizer may have taken over that asks us for them as it starts; the barrier keeps the compiler from calling it.
bool same(const char* a, const char* b) {
  for (; *a && *a == *b; a++, b++) asm volatile("" ::: "memory");
  return *a == *b;
}

uint32_t gnu_hash(const char* name) {
  uint32_t h = 5381;
  for (; *name; name++) h = h * 33 + static_cast<unsigned char>(*name);
  return h;
}

// The function of that name which an object defines, of its default version if there are several. By hand: to ask the loader would be to
// ask ourselves.
void* defined_by(uintptr_t base, const ElfW(Dyn)* d, const char* name, uint32_t hash) {
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

void* defined_by(const dl_phdr_info* o, const char* name, uint32_t hash) {
  const ElfW(Dyn)* d = nullptr;
  for (int i = 0; i < o->dlpi_phnum; i++)
    if (o->dlpi_phdr[i].p_type == PT_DYNAMIC) d = reinterpret_cast<const ElfW(Dyn)*>(o->dlpi_addr + o->dlpi_phdr[i].p_vaddr);
  return defined_by(o->dlpi_addr, d, name, hash);
}

// A walk through all objects, in the order in which the loader looks at those of the global scope.
struct Search {
  const char* name;
  const void* caller;
  bool after_caller;     // what the caller's own place in that order leads to: RTLD_NEXT
  uint32_t hash = gnu_hash(name);
  uintptr_t vdso = getauxval(AT_SYSINFO_EHDR);
  bool us_seen = false, caller_seen = false;
  bool others = false;   // a library between us and libc, or between the caller and us, has one
  void *ours = nullptr, *libcs = nullptr;
};

int look(dl_phdr_info* o, size_t, void* p) {
  auto& s = *static_cast<Search*>(p);
  bool us = contains(o, reinterpret_cast<const void*>(&look)), asks = contains(o, s.caller);
  if (us) {
    s.us_seen = true;
    s.ours = asks ? nullptr : defined_by(o, s.name, s.hash);
    if (!s.ours) return 1;
  } else if (contains(o, reinterpret_cast<const void*>(&gnu_get_libc_version))) {
    s.libcs = defined_by(o, s.name, s.hash);
  } else if (!s.libcs && (s.us_seen || (s.after_caller && s.caller_seen)) && o->dlpi_addr != s.vdso && defined_by(o, s.name, s.hash)) {
    s.others = true;
  }
  s.caller_seen |= asks;
  return 0;
}

int in_libc(dl_phdr_info* o, size_t, void* p) {
  return contains(o, reinterpret_cast<const void*>(&gnu_get_libc_version)) ? 1 + contains(o, p) : 0;
}

link_map* libc = nullptr;
decltype(&dl_iterate_phdr) each_object = nullptr;  // libc's: a program's own may ask for the next one here
std::atomic<bool> ready{false};

template <class F>
F of_libc(const char* name) {
  return reinterpret_cast<F>(defined_by(libc->l_addr, libc->l_ld, name, gnu_hash(name)));
}

// Two threads may do this at once, and find the same.
void get_ready() {
  Dl_info info;
  dladdr1(reinterpret_cast<const void*>(&gnu_get_libc_version), &info, reinterpret_cast<void**>(&libc), RTLD_DL_LINKMAP);
  each_object = of_libc<decltype(&dl_iterate_phdr)>("dl_iterate_phdr");
  auto libcs = of_libc<Dlsym>("dlsym");
  fiberthread_next_dlvsym = reinterpret_cast<Dlvsym>(libcs(RTLD_NEXT, "dlvsym"));
  fiberthread_next_dlsym = reinterpret_cast<Dlsym>(libcs(RTLD_NEXT, "dlsym"));
  ready.store(true, std::memory_order_release);
}

}  // namespace
}  // namespace fiberthread

using namespace fiberthread;

void* fiberthread_dl_ours(void* handle, const char* name, const char* version, const void* caller) {
  if (__builtin_expect(!ready.load(std::memory_order_acquire), 0)) get_ready();
  if (handle == RTLD_DEFAULT && !version) return nullptr;  // that finds us by itself
  bool next = handle == RTLD_NEXT;
  Search s{name, caller, next};
  each_object(look, &s);
  if (!s.ours || !s.libcs || s.others || (next && !s.caller_seen)) return nullptr;
  void* found = s.libcs;
  bool by_handle = !next && handle != RTLD_DEFAULT;
  if (version) found = fiberthread_next_dlvsym(by_handle ? handle : libc, name, version);
  else if (by_handle) found = fiberthread_next_dlsym(handle, name);
  if (!found || each_object(in_libc, found) != 2) return nullptr;
  // What an older version means we do not know, but of condition variables: those are as large, and as zero when new.
  if (version && found != s.libcs) {
    for (const char *cond = "pthread_cond_", *n = name; *cond; cond++, n++)
      if (*n != *cond) return nullptr;
  }
  return s.ours;
}
