// SPDX-License-Identifier: MIT
#include "preload/sanitizer.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/auxv.h>

#include "sched/syscall.h"

extern "C" {
void __asan_init() __attribute__((weak));
void __lsan_do_leak_check() __attribute__((weak));
void __tsan_init() __attribute__((weak));
void fiberthread_explore_answers() __attribute__((weak));  // of preload/explore/memory/, which answers in ThreadSanitizer's place
// AddressSanitizer starts before us, and would end the program because of the order of libraries. This function, by which it asks for
// options, turns that check off. After the second start AddressSanitizer is in front, and finds its own function instead.
__attribute__((visibility("default"))) const char* __asan_default_options() { return "verify_asan_link_order=0"; }
}

namespace fiberthread {
namespace {

constexpr char kPreload[] = "LD_PRELOAD=", kBegunAnew[] = "FIBERTHREAD_BEGUN_ANEW=";
constexpr size_t kMost = 4096;

// A sanitizer that is not ready yet may have taken over libc's functions for these. The barriers keep the compiler from calling them.
size_t length(const char* s) {
  size_t n = 0;
  for (; s[n]; n++) asm volatile("" ::: "memory");
  return n;
}
char* copy(char* to, const char* from, size_t n) {
  for (size_t i = 0; i < n; i++) {
    to[i] = from[i];
    asm volatile("" ::: "memory");
  }
  return to + n;
}
bool begins(const char* s, const char* with) {
  for (; *with; s++, with++)
    if (*s != *with) return false;
  return true;
}

char** find(char** envp, const char* name) {
  for (; *envp; envp++)
    if (begins(*envp, name)) return envp;
  return nullptr;
}

const char* base_name(const char* path) {
  const char* base = path;
  for (; *path; path++)
    if (*path == '/') base = path + 1;
  return base;
}

const char* file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fname : nullptr;
}

// Copies the value of LD_PRELOAD without our entry to `to`. Returns false if our entry is not there.
bool without_us(const char* value, char* to) {
  const char* path = file_of(reinterpret_cast<const void*>(&sanitizer_start));
  const char* us = path ? base_name(path) : "";
  bool found = false;
  char* p = to;
  while (*value) {
    const char *end = value, *name = value;
    for (; *end && *end != ':' && *end != ' '; end++)
      if (*end == '/') name = end + 1;
    if (static_cast<size_t>(end - name) == length(us) && begins(name, us)) {
      found = true;
    } else if (end > value) {
      if (p > to) *p++ = ':';
      p = copy(p, value, static_cast<size_t>(end - value));
    }
    value = *end ? end + 1 : end;
  }
  *p = 0;
  return found;
}

void begin_anew(char** argv, char** envp) {
  if (getauxval(AT_BASE) == 0) return;  // the loader was run as a command: /proc/self/exe is the loader, and argv is not its own
  char path[kMost];
  long n = raw_syscall(SYS_readlinkat, -100 /* AT_FDCWD */, arg("/proc/self/exe"), arg(path), sizeof path - 1);
  if (n <= 0) return;
  path[n] = 0;
  raw_syscall(SYS_execve, arg(path), arg(argv), arg(envp));
  raw_syscall(SYS_execve, arg("/proc/self/exe"), arg(argv), arg(envp));
}

}  // namespace

void sanitizer_start(char** argv, char** envp) {
  // This is the second start. Programs that this one runs must not inherit the changes that we made for it.
  if (char** anew = find(envp, kBegunAnew)) {
    size_t added = length(*anew + sizeof kBegunAnew - 1) + 1;
    if (char** preload = find(envp, kPreload)) {
      char* value = *preload + sizeof kPreload - 1;
      if (length(value) >= added) copy(value, value + added, length(value + added) + 1);
    }
    for (; *anew; anew++) *anew = anew[1];
    return;
  }
  bool tsan = __tsan_init && !fiberthread_explore_answers;
  if (!tsan && !__asan_init && !__lsan_do_leak_check) return;
  char** preload = find(envp, kPreload);
  size_t count = 0;
  while (envp[count]) count++;
  if (!preload || length(*preload) > kMost / 2 || count > 100'000) return;
  auto** anew = static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*)));
  copy(reinterpret_cast<char*>(anew), reinterpret_cast<char*>(envp), (count + 1) * sizeof(char*));
  char value[2 * kMost], mark[kMost];
  char* rest = copy(value, kPreload, sizeof kPreload - 1);
  if (tsan) {
    if (!without_us(*preload + sizeof kPreload - 1, rest)) return;
    if (find(envp, "FIBERTHREAD_VERBOSE=1")) {
      constexpr char kLine[] = "fiberthread: threads are NPTL's: ThreadSanitizer wants to see each of libc's locks itself\n";
      raw_syscall(SYS_write, 2, arg(kLine), sizeof kLine - 1);
    }
  } else {
    // A second start is needed only if calls of pthread_create find ours first. A sanitizer inside the program itself comes first anyway.
    if (dlsym(RTLD_DEFAULT, "pthread_create") != reinterpret_cast<void*>(&pthread_create)) return;
    const char* tool = file_of(__asan_init ? reinterpret_cast<void*>(&__asan_init) : reinterpret_cast<void*>(&__lsan_do_leak_check));
    if (!tool || length(tool) + sizeof kBegunAnew > kMost) return;
    rest = copy(copy(rest, tool, length(tool)), ":", 1);
    copy(rest, *preload + sizeof kPreload - 1, length(*preload + sizeof kPreload - 1) + 1);
    copy(copy(mark, kBegunAnew, sizeof kBegunAnew - 1), tool, length(tool) + 1);
    anew[count] = mark;
    anew[count + 1] = nullptr;
  }
  anew[preload - envp] = value;
  begin_anew(argv, anew);
}

}  // namespace fiberthread
