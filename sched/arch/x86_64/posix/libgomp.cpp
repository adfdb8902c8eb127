// SPDX-License-Identifier: MIT
// libgomp waits on futexes by inline system call instructions, which nothing can interpose. A waiting thread would cost its worker, and a
// hand-over of the slot. So they are replaced. GCC's builds for x86-64 have two instructions at each place that waits or wakes. One is
// `syscall; cmp $-38,%rax`. The other runs only on kernels without private futexes. A jump to a stub replaces the six bytes of the first.
// The stub leaves the red zone alone, calls this library for the system call, compares, and jumps back.
//
// Either all places are replaced or none, because a wake-up by the kernel wakes no fiber. A library that does not look exactly like that is
// left alone.
#include "shim/libgomp.h"
#include "shim/syscall.h"

#include <fcntl.h>
#include <link.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <initializer_list>

#include "sched/life/fork.h"
#include "sched/syscall.h"

extern "C" __attribute__((visibility("hidden"))) void fiberthread_libgomp_call();
extern "C" __attribute__((visibility("hidden"))) long fiberthread_libgomp_syscall(long a, long b, long c, long d, long e, long f, long nr);

namespace fiberthread {
namespace {

constexpr unsigned char kSite[] = {0x0f, 0x05, 0x48, 0x83, 0xf8, 0xda};
constexpr size_t kStub = 32, kPage = 4096, kMostSites = 64;

struct Library {
  unsigned char* text;
  size_t size;
  uintptr_t first, last;  // bounds of all its segments
};

// Libraries that have been looked at, under `busy`. There may be several: a Python wheel may bring one of its own.
std::atomic_flag busy;
constexpr size_t kMost = 8;
Library known[kMost];
size_t known_count = 0;

// Maps a page that jumps from and to the library can reach. Returns null if there is no room.
unsigned char* page_near(const Library& l) {
  for (uintptr_t distance = kPage; distance < uintptr_t{1} << 30; distance *= 2)
    for (uintptr_t at : {(l.last + distance) & ~(kPage - 1), (l.first - distance) & ~(kPage - 1)}) {
      long mem = raw_syscall(SYS_mmap, static_cast<long>(at), kPage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (mem == static_cast<long>(at)) return reinterpret_cast<unsigned char*>(mem);
      if (mem > 0) raw_syscall(SYS_munmap, mem, kPage);
    }
  return nullptr;
}

void put_distance(unsigned char* at, const unsigned char* to) {
  auto d = static_cast<int32_t>(to - (at + 4));
  memcpy(at, &d, 4);
}

// Writes code through /proc/self/mem, so the protection of the code's pages stays as it is. Returns false if the kernel refuses.
bool write_text(long memory, unsigned char* at, const unsigned char (&bytes)[sizeof kSite]) {
  return raw_syscall(SYS_pwrite64, memory, arg(bytes), sizeof bytes, arg(at)) == sizeof bytes;
}

// Returns true if the bytes at `p` are no system call, but part of a distance in a call, a jump or an operand. The distance must lead into
// the library. If `p` is a system call, it makes a distance of many megabytes together with the bytes around it.
bool in_distance(const Library& l, const unsigned char* p) {
  for (const unsigned char* d = p - 3; d <= p; d++) {
    if (d < l.text + 2 || d + 4 > l.text + l.size) continue;
    bool jump = d[-1] == 0xe8 || d[-1] == 0xe9 || (d[-2] == 0x0f && (d[-1] & 0xf0) == 0x80);
    bool operand = (d[-1] & 0xc7) == 0x05;
    int32_t distance;
    memcpy(&distance, d, sizeof distance);
    uintptr_t to = reinterpret_cast<uintptr_t>(d + 4) + static_cast<uintptr_t>(int64_t{distance});
    if ((jump || operand) && to >= l.first && to < l.last) return true;
  }
  return false;
}

void patch(const Library& l) {
  unsigned char *sites[kMostSites], *end = l.text + l.size;
  size_t n = 0, all = 0;
  for (unsigned char* p = l.text; (p = static_cast<unsigned char*>(memmem(p, static_cast<size_t>(end - p), kSite, 2))); p += 2) {
    bool site = static_cast<size_t>(end - p) >= sizeof kSite && memcmp(p, kSite, sizeof kSite) == 0;
    if (!site && in_distance(l, p)) continue;
    all++;
    if (!site) continue;
    if (n == kMostSites) return;
    sites[n++] = p;
  }
  if (!n || all != 2 * n) return;
  unsigned char* page = page_near(l);
  if (!page) return;
  auto* target = reinterpret_cast<void (**)()>(page + kPage - sizeof(void*));
  *target = fiberthread_libgomp_call;
  for (size_t i = 0; i < n; i++) {
    unsigned char* s = page + i * kStub;
    memcpy(s, "\x48\x8d\x64\x24\x80\xff\x15", 7);  // lea -128(%rsp), %rsp; call *target(%rip)
    put_distance(s + 7, reinterpret_cast<unsigned char*>(target));
    memcpy(s + 11, "\x48\x8d\xa4\x24\x80\x00\x00\x00", 8);  // lea 128(%rsp), %rsp
    memcpy(s + 19, "\x48\x83\xf8\xda\xe9", 5);              // cmp $-38, %rax; jmp
    put_distance(s + 24, sites[i] + sizeof kSite);
  }
  size_t done = 0;
  long memory = raw_syscall(SYS_mprotect, arg(page), kPage, PROT_READ | PROT_EXEC);
  if (memory == 0) memory = raw_syscall(SYS_openat, AT_FDCWD, arg("/proc/self/mem"), O_RDWR | O_CLOEXEC);
  for (; memory >= 0 && done < n; done++) {
    unsigned char jump[sizeof kSite] = {0xe9, 0, 0, 0, 0, 0x90};
    auto distance = static_cast<int32_t>(page + done * kStub - (sites[done] + 5));
    memcpy(jump + 1, &distance, sizeof distance);
    if (!write_text(memory, sites[done], jump)) break;
  }
  if (done < n) {
    for (size_t i = 0; i < done; i++) write_text(memory, sites[i], kSite);
    raw_syscall(SYS_munmap, arg(page), kPage);
  }
  if (memory >= 0) raw_syscall(SYS_close, memory);
}

int look_at_library(dl_phdr_info* info, size_t, void*) {
  const char* name = strrchr(info->dlpi_name, '/');
  if (!name || (strncmp(name, "/libgomp.so", 11) != 0 && strncmp(name, "/libgomp-", 9) != 0)) return 0;
  Library l{nullptr, 0, ~uintptr_t{0}, 0};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& p = info->dlpi_phdr[i];
    if (p.p_type != PT_LOAD) continue;
    uintptr_t at = info->dlpi_addr + p.p_vaddr;
    if (at < l.first) l.first = at;
    if (at + p.p_memsz > l.last) l.last = at + p.p_memsz;
    if (!(p.p_flags & PF_X)) continue;
    l.text = reinterpret_cast<unsigned char*>(at);
    l.size = p.p_memsz;
  }
  for (size_t i = 0; i < known_count; i++)
    if (known[i].text == l.text) return 0;
  if (!l.text || known_count == kMost) return 0;
  known[known_count++] = l;
  patch(l);
  return 0;
}

}  // namespace

void libgomp_look() {
  // Two threads may look after their dlopen at the same time. Neither returns before the library is patched.
  while (busy.test_and_set(std::memory_order_acquire)) sched_yield();
  dl_iterate_phdr(look_at_library, nullptr);
  busy.clear(std::memory_order_release);
}

FIBERTHREAD_IN_FORK_CHILD(EmbeddersThreads, libgomp, [](FiberRecord*) { busy.clear(std::memory_order_relaxed); })

}  // namespace fiberthread

extern "C" long fiberthread_libgomp_syscall(long a, long b, long c, long d, long e, long f, long nr) {
  return fiberthread::syscall_of_fiber(nr, a, b, c, d, e, f);
}
