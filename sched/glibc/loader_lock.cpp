// SPDX-License-Identifier: MIT
#include "sched/glibc/loader_lock.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include "sched/glibc/layout.h"

namespace fiberthread::glibc {
namespace {

constexpr size_t kMaxGlobal = 65536;  // far beyond what any libc has
constexpr unsigned kMost = 8;         // recursive mutexes that the caller may have locked

pthread_mutex_t* loader_lock = nullptr;

// A recursive mutex among the loader's variables that the caller has locked in the outer callback.
struct Candidate {
  pthread_mutex_t* mutex;
  unsigned count;
};

struct Search {
  uint32_t tid;  // the caller's, as libc writes it into mutexes
  char* begin;
  size_t size;
  Candidate candidates[kMost];
  unsigned found = 0;

  // Returns how often the caller has locked the mutex. Returns 0 for memory that is no such mutex.
  unsigned locked(const pthread_mutex_t* m) const {
    auto& d = m->__data;
    bool mine = __atomic_load_n(&d.__lock, __ATOMIC_RELAXED) != 0 &&
                static_cast<uint32_t>(__atomic_load_n(&d.__owner, __ATOMIC_RELAXED)) == tid && d.__kind == PTHREAD_MUTEX_RECURSIVE_NP;
    return mine ? d.__count : 0;
  }
  void collect() {
    for (size_t o = 0; o + sizeof(pthread_mutex_t) <= size && found < kMost; o += alignof(pthread_mutex_t)) {
      auto* m = reinterpret_cast<pthread_mutex_t*>(begin + o);
      if (unsigned n = locked(m)) candidates[found++] = {m, n};
    }
  }
  // Keeps the candidates that the caller has locked `more` times more than in the outer callback.
  void keep(int more) {
    unsigned kept = 0;
    for (unsigned i = 0; i < found; i++)
      if (locked(candidates[i].mutex) == candidates[i].count + static_cast<unsigned>(more)) candidates[kept++] = candidates[i];
    found = kept;
  }
};

int in_inner(dl_phdr_info*, size_t, void* data) {
  static_cast<Search*>(data)->keep(1);
  return 1;
}

int in_outer(dl_phdr_info*, size_t, void* data) {
  static_cast<Search*>(data)->collect();
  dl_iterate_phdr(in_inner, data);
  static_cast<Search*>(data)->keep(0);
  return 1;
}

}  // namespace

void find_loader_lock() {
  if (loader_lock) return;
  Dl_info info;
  ElfW(Sym)* symbol = nullptr;
  if (!dladdr1(layout.rtld_global, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) || info.dli_saddr != layout.rtld_global ||
      !symbol || symbol->st_size > kMaxGlobal)
    return;
  Search search{at<uint32_t>(reinterpret_cast<void*>(pthread_self()), layout.tid), layout.rtld_global, symbol->st_size, {}};
  dl_iterate_phdr(in_outer, &search);
  search.keep(-1);
  if (search.found == 1) loader_lock = search.candidates[0].mutex;
}

// The owner is a thread of the parent. If the caller itself was inside dl_iterate_phdr(), it is not the owner any more, as it has another
// tid now. Then libc's unlock at the end of that call does nothing.
void free_loader_lock_after_fork() {
  if (loader_lock) *loader_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

}  // namespace fiberthread::glibc
