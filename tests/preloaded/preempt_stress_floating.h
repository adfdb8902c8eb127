// SPDX-License-Identifier: MIT
// Floating point for preempt_stress.cpp: results, rounding modes, flags and registers must be as without preemption.
#pragma once
#include <cerrno>
#include <cfenv>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "preempt_stress.h"

#if defined(__clang__)
#pragma STDC FENV_ACCESS ON  // without it Clang computes constants before the program runs, by the default rounding
#endif

// Each sum takes some hundred microseconds, so that it is preempted. Its result depends on the rounding mode.
constexpr int kTerms = 20000;
[[gnu::noinline]] static double sum_double(int terms) {
  double s = 0;
  for (int k = 1; k <= terms; k++) s += 1.0 / k;
  return s;
}
// Runs on the x87 stack. On other processors it is software, which follows the rounding mode as well.
[[gnu::noinline]] static long double sum_long(int terms) {
  long double s = 0;
  for (int k = 1; k <= terms; k++) s += 1.0L / k;
  return s;
}
// Uses all ymm registers, all zmm registers, or all vector registers of AArch64.
template <class V>
[[gnu::always_inline]] inline double sum_vector_of(int terms) {
  constexpr int kLanes = sizeof(V) / sizeof(double);
  V s[12], x[2];
  for (auto& v : s) v = V{};
  for (int i = 0; i < kLanes; i++) x[0][i] = 1 + i, x[1][i] = 0.1;
  for (int k = 0; k < terms; k++) {
    x[0] += x[1];
    for (int i = 0; i < 12; i++) s[i] += x[1] / x[0] * (double)i;
  }
  double sum = 0;
  for (auto& v : s)
    for (int i = 0; i < kLanes; i++) sum += v[i];
  return sum;
}
typedef double V2 __attribute__((vector_size(16)));
[[gnu::noinline]] static double sum_two(int terms) { return sum_vector_of<V2>(terms); }
static double (*sum_vector)(int) = sum_two;
#if defined(__x86_64__)
typedef double V4 __attribute__((vector_size(32)));
typedef double V8 __attribute__((vector_size(64)));
__attribute__((noinline, target("avx2"))) static double sum_avx(int terms) { return sum_vector_of<V4>(terms); }
__attribute__((noinline, target("avx512f"))) static double sum_avx512(int terms) { return sum_vector_of<V8>(terms); }

static void choose_vectors() {
  sum_vector = __builtin_cpu_supports("avx512f") ? sum_avx512 : __builtin_cpu_supports("avx2") ? sum_avx : sum_two;
}
constexpr bool kLongInSoftware = false, kHandlersInherit = false;
constexpr uint64_t kFlush = 0x8040;
static uint64_t control() { return _mm_getcsr(); }
static void set_control(uint64_t v) { _mm_setcsr(static_cast<unsigned>(v)); }
#else
static void choose_vectors() {}
constexpr bool kLongInSoftware = true, kHandlersInherit = true;
constexpr uint64_t kFlush = 1 << 24;
static uint64_t control() {
  uint64_t v;
  asm volatile("mrs %0, fpcr" : "=r"(v));
  return v;
}
static void set_control(uint64_t v) { asm volatile("msr fpcr, %0" : : "r"(v)); }
#endif

constexpr int kLongTerms = kLongInSoftware ? kTerms / 10 : kTerms;
constexpr int kModes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
static struct Expected {
  double scalar, vector;
  long double wide;
} expected[4];

static void learn_expected() {
  choose_vectors();
  for (int m = 0; m < 4; m++) {
    fesetround(kModes[m]);
    expected[m] = {sum_double(kTerms), sum_vector(kTerms / 8), sum_long(kLongTerms)};
  }
  fesetround(FE_TONEAREST);
  CHECK(expected[1].scalar < expected[2].scalar && expected[1].wide < expected[2].wide && expected[1].vector < expected[2].vector);
}

// Keeps values in registers that compilers seldom use, and counts meanwhile: seven on the x87 stack, or the last seven of AArch64.
static void rare_registers_in_use(int seed) {
  double in[7], out[7];
  for (int i = 0; i < 7; i++) in[i] = seed * 16 + i + 0.5;
  long count = 200000;
#if defined(__x86_64__)
  asm volatile(
      "fldl 0(%1); fldl 8(%1); fldl 16(%1); fldl 24(%1); fldl 32(%1); fldl 40(%1); fldl 48(%1)\n"
      "1: dec %0; jnz 1b\n"
      "fstpl 48(%2); fstpl 40(%2); fstpl 32(%2); fstpl 24(%2); fstpl 16(%2); fstpl 8(%2); fstpl 0(%2)"
      : "+r"(count)
      : "r"(in), "r"(out)
      : "memory", "cc", "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)");
#else
  asm volatile(
      "ldp d25, d26, [%1]; ldp d27, d28, [%1, #16]; ldp d29, d30, [%1, #32]; ldr d31, [%1, #48]\n"
      "1: sub %0, %0, #1; cbnz %0, 1b\n"
      "stp d25, d26, [%2]; stp d27, d28, [%2, #16]; stp d29, d30, [%2, #32]; str d31, [%2, #48]"
      : "+r"(count)
      : "r"(in), "r"(out)
      : "memory", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
#endif
  CHECK(memcmp(in, out, sizeof in) == 0);
}

static void floating_round(int mode, bool flush, int n) {
  switch (n % 5) {
    case 0: CHECK(sum_double(kTerms) == expected[mode].scalar); break;
    case 1: CHECK(sum_long(kLongTerms) == expected[mode].wide); break;
    case 2: CHECK(sum_vector(kTerms / 8) == expected[mode].vector); break;
    case 3: rare_registers_in_use(n); break;
    case 4: {
      // Sticky flags: this thread keeps its own, and gets none of other threads.
      feclearexcept(FE_ALL_EXCEPT);
      volatile double one = 1, zero = 0, tiny = 4e-320, infinite = 0;
      if (n & 1) infinite = one / zero;
      (void)infinite;
      errno = n;
      for (int i = 0; i < 100000; i++) asm volatile("" ::: "memory");
      CHECK(errno == n, errno, n);
      CHECK(fetestexcept(FE_ALL_EXCEPT) == (n & 1 ? FE_DIVBYZERO : 0), fetestexcept(FE_ALL_EXCEPT));
      volatile double product = tiny * one;
      CHECK((product == 0) == flush);
    }
  }
  CHECK(fegetround() == kModes[mode], fegetround(), mode);
}

static void floating(int id) {
  int mode = id % 4;
  bool flush = id & 4;
  fesetround(kModes[mode]);
  if (flush) set_control(control() | kFlush);
  for (int n = id; !enough; n++) {
    floating_round(mode, flush, n);
    CHECK(((control() & kFlush) != 0) == flush);
    if (n % 8 == 0) sched_yield();
  }
}
