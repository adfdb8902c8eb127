// SPDX-License-Identifier: MIT
// What the processor says of itself, as libc has asked it already. Under a hypervisor, each CPUID takes 10 to 20 microseconds.
#pragma once
#include <cpuid.h>
#include <dlfcn.h>
#include <sys/platform/x86.h>

namespace fiberthread {

struct Features {
  uint32_t eax, ecx;
};

// `libc` is libc's number for the leaf and subleaf. Takes a lock of the loader.
inline Features features(unsigned libc, unsigned leaf, unsigned subleaf) {
  static auto* const get = reinterpret_cast<decltype(&__x86_get_cpuid_feature_leaf)>(dlsym(RTLD_DEFAULT, "__x86_get_cpuid_feature_leaf"));
  if (const cpuid_feature* f = get ? get(libc) : nullptr) return {f->cpuid_array[0], f->cpuid_array[2]};
  unsigned a, b, c, d;
  if (!__get_cpuid_count(leaf, subleaf, &a, &b, &c, &d)) return {};
  return {a, c};
}

}  // namespace fiberthread
