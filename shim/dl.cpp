// SPDX-License-Identifier: MIT
// dlopen, dlmopen and dlclose. The scheduler has to know what is loaded: TLS of modules, executable stacks, and which object has which
// code.
//
// RTLD_DEEPBIND is dropped, so that plugins see the same threads as the program. libc looks for a library on behalf of its caller (RUNPATH,
// $ORIGIN), and that would be us. So that part is done here for the true caller.
#include "shim/dl.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#include "sched/glibc/go.h"
#include "sched/glibc/modules.h"
#include "sched/memory/block.h"
#include "sched/preempt.h"
#include "sched/scheduler.h"
#include "shim/export.h"
#include "shim/libgomp.h"
#include "shim/real.h"

namespace fiberthread {
namespace {

void look_again() {
  tcb_modules_changed();
  if (!sched_started()) return;  // the thread that starts it looks
  int error = errno;
  tcb_look_at_modules();
  stack_look_at_objects();
  preempt_look_at_objects();
  libgomp_look();
  static std::atomic<bool> all_bound{false};
  if (__builtin_expect(tcb_go_is_loaded(), 0) && !all_bound.exchange(true, std::memory_order_relaxed)) {
    // The fibers that exist may call into Go too.
    sched_bind(main_fiber);
    block_each(
        [](FiberRecord* f, void*) {
          if (f->join.valid.load(std::memory_order_acquire) && f != self()) sched_bind(f);
          return true;
        },
        nullptr);
    sched_bind(self());
  }
  errno = error;
}

// Returns the caller's object. Null if it is not known, or has no search path of its own.
link_map* object_with_own_path(const void* caller) {
  Dl_info info;
  link_map* map = nullptr;
  if (!dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map || !map->l_ld) return nullptr;
  for (auto* d = map->l_ld; d->d_tag != DT_NULL; d++)
    if (d->d_tag == DT_RUNPATH || d->d_tag == DT_RPATH) return map;
  return nullptr;
}

// A path that is made here. It is on the heap, because stacks may be small.
struct Path {
  char* text = static_cast<char*>(malloc(PATH_MAX));
  Path() = default;
  Path(const Path&) = delete;
  ~Path() { free(text); }
};

// Puts the directory of the object into `out`, which has room for PATH_MAX bytes, as all paths here have. libc learns the program's own
// directory only when it first needs that, and dlinfo() crashes before.
bool origin_of(link_map* map, char* out) {
  if (map->l_name[0]) return dlinfo(map, RTLD_DI_ORIGIN, out) == 0;
  ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
  while (n > 1 && out[n - 1] != '/') n--;
  if (n < 1) return false;
  out[n > 1 ? n - 1 : n] = 0;
  return true;
}

// Puts the caller's directory in place of $ORIGIN at the start of `file`. Returns false if `file` has no $ORIGIN as its first directory, or
// is too long.
bool expand_origin(const char* file, const void* caller, char* out) {
  const char* rest = nullptr;
  for (const char* name : {"$ORIGIN", "${ORIGIN}"})
    if (strncmp(file, name, strlen(name)) == 0) rest = file + strlen(name);
  Dl_info info;
  link_map* map = nullptr;
  if (!rest || *rest != '/' || !dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map) return false;
  if (!origin_of(map, out) || strlen(out) + strlen(rest) >= PATH_MAX) return false;
  strcat(out, rest);
  return true;
}

// The directories where libraries are searched for an object, in order.
class SearchPath {
 public:
  unsigned count = 0;

  explicit SearchPath(link_map* map) {
    Dl_serinfo size;
    if (dlinfo(map, RTLD_DI_SERINFOSIZE, &size) != 0) return;
    all_ = static_cast<Dl_serinfo*>(malloc(size.dls_size));  // stacks may be small
    if (!all_) return;
    all_->dls_size = size.dls_size;
    all_->dls_cnt = size.dls_cnt;
    if (dlinfo(map, RTLD_DI_SERINFO, all_) == 0) count = all_->dls_cnt;
  }
  ~SearchPath() { free(all_); }
  SearchPath(const SearchPath&) = delete;

  const char* operator[](unsigned i) const {
    const Dl_serpath* path = all_->dls_serpath;
    asm("" : "+r"(path));  // declared as an array of none
    return path[i].dls_name;
  }

 private:
  Dl_serinfo* all_ = nullptr;
};

// Finds out where `map` would find `file` before the common directories are searched. Returns false if nowhere.
bool find_in_own_path(link_map* map, const char* file, char* out) {
  Dl_info info;
  link_map* us = nullptr;
  if (!dladdr1(reinterpret_cast<void*>(look_again), &info, reinterpret_cast<void**>(&us), RTLD_DL_LINKMAP) || !us) return false;
  SearchPath own(map), common(us);
  // The directories that both paths end with are left to libc, whose cache comes before the default directories.
  while (own.count && common.count && strcmp(own[own.count - 1], common[common.count - 1]) == 0) own.count--, common.count--;
  for (unsigned i = 0; i < own.count; i++) {
    const char* dir = own[i];
    if (strlen(dir) + 1 + strlen(file) >= PATH_MAX) continue;
    strcpy(out, dir);
    strcat(out, "/");
    strcat(out, file);
    if (access(out, R_OK) == 0) return true;
  }
  return false;
}

std::atomic<int> opening{0};

template <class Open>
void* open_for(const char* file, int flags, const void* caller, Open open) {
  flags &= ~RTLD_DEEPBIND;
  tcb_modules_change();
  opening.fetch_add(1, std::memory_order_seq_cst);
  void* handle = nullptr;
  if (file && *file == '$') {
    Path path;
    handle = open(path.text && expand_origin(file, caller, path.text) ? path.text : file, flags);
  } else if (link_map* map = file && *file && !strchr(file, '/') ? object_with_own_path(caller) : nullptr) {
    handle = open(file, flags | RTLD_NOLOAD);
    if (!handle && !(flags & RTLD_NOLOAD)) {
      Path path;
      if (path.text && find_in_own_path(map, file, path.text)) handle = open(path.text, flags);
    }
    if (!handle) handle = open(file, flags);
    else dlerror();  // the error of the first try
  } else {
    handle = open(file, flags);
  }
  look_again();
  opening.fetch_sub(1, std::memory_order_seq_cst);
  return handle;
}

}  // namespace

bool dl_is_opening() { return opening.load(std::memory_order_relaxed) != 0; }

}  // namespace fiberthread

using namespace fiberthread;

FIBERTHREAD_EXPORT void* dlopen(const char* file, int flags) noexcept {
  return open_for(file, flags, __builtin_return_address(0), [](const char* f, int how) { return REAL(dlopen)(f, how); });
}

FIBERTHREAD_EXPORT void* dlmopen(Lmid_t ns, const char* file, int flags) noexcept {
  return open_for(file, flags, __builtin_return_address(0), [ns](const char* f, int how) { return REAL(dlmopen)(ns, f, how); });
}

FIBERTHREAD_EXPORT int dlclose(void* handle) noexcept {
  tcb_modules_change();
  int r = REAL(dlclose)(handle);
  look_again();
  return r;
}
