// SPDX-License-Identifier: MIT
// The static TLS of loaded modules. When a fiber ends, every module's static TLS is set back to how a new thread finds it.
//
// The modules are learnt from the loader's list. A thread reads that list again only after a dlopen or dlclose.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

struct dl_phdr_info;

namespace fiberthread {

// The embedder calls the first before each dlopen and dlclose, and the second afterwards. The list of modules with TLS changes somewhere
// between the two.
void tcb_modules_change();
void tcb_modules_changed();

// Learns which modules there are, if that is not known. It takes the loader's lock. So only a thread of the program may call it, in one of
// its own calls that take that lock with NPTL too. A worker that held the lock while the program forks would leave it locked in the child.
void tcb_look_at_modules();

// Returns true if the address is in the loaded object.
bool object_contains(const dl_phdr_info& object, const void* address);

// ---- for this folder only ----
namespace glibc {

struct Module {
  ptrdiff_t offset;  // of its static TLS, from the thread pointer
  const void* image;
  size_t file_size, mem_size;
};
// libc's own module. It is known from the first look on.
extern Module libc_tls __attribute__((visibility("hidden")));

// The number of dlopens and dlcloses that have ended, plus one. After a fork it counts one more.
extern std::atomic<uint64_t> modules_changes __attribute__((visibility("hidden")));
// The number of dlopens and dlcloses that are under way. While there are any, each ending thread reads the loader's list itself.
extern std::atomic<int> loading __attribute__((visibility("hidden")));

// Finds where module `modid` has its static TLS, by the loader's own table. Returns false if it has none. The self-check passes `check`,
// because it does not know yet that the table is where libc says.
bool static_offset(size_t modid, ptrdiff_t& offset, bool check = false);

// Gives all modules but libc and this library their initial static TLS, in the thread with that thread pointer.
void reset_static_tls(char* tp);

void forget_modules_after_fork();

}  // namespace glibc
}  // namespace fiberthread
