// SPDX-License-Identifier: MIT
// What the processor says of itself, as libc has asked it already. Under a hypervisor, each CPUID takes 10 to 20 microseconds.
#pragma once
#include <cpuid.h>
#include <dlfcn.h>

#include <cstdint>

namespace fiberthread {

// The interface of libc's <sys/platform/x86.h>, which clang does not take for C++.
enum class LibcLeaf : unsigned { k1 = 0, k13With1 = 3 };
struct LibcFeatures {
  uint32_t cpuid[4], active[4];  // eax, ebx, ecx, edx
};

struct Features {
  uint32_t eax, ecx;
};

// Returns what CPUID returns for the leaf and subleaf. Takes a lock of the loader.
inline Features features(LibcLeaf libcs, unsigned leaf, unsigned subleaf) {
  static auto* const get = reinterpret_cast<const LibcFeatures* (*)(LibcLeaf)>(dlsym(RTLD_DEFAULT, "__x86_get_cpuid_feature_leaf"));
  if (const LibcFeatures* f = get ? get(libcs) : nullptr) return {f->cpuid[0], f->cpuid[2]};
  unsigned a, b, c, d;
  if (!__get_cpuid_count(leaf, subleaf, &a, &b, &c, &d)) return {};
  return {a, c};
}

}  // namespace fiberthread
