// SPDX-License-Identifier: MIT
#include "sched/glibc/cond.h"

#include <string.h>
#include <time.h>

namespace fiberthread {

size_t libc_cond_flags_word = offsetof(pthread_cond_t, __data.__wrefs) / sizeof(unsigned);

namespace {

constexpr size_t kWords = sizeof(pthread_cond_t) / sizeof(unsigned);

// Makes an object with these flags, and returns the index of its only word that is not zero. Returns kWords if there is no such word, or if
// its value is not `flags`.
size_t only_word(unsigned flags, int (*init)(pthread_cond_t*, const pthread_condattr_t*)) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  if (flags & kLibcCondShared) pthread_condattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  if (flags & kLibcCondMonotonic) pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_t c = {};
  unsigned words[kWords];
  if (init(&c, &attr) != 0) return kWords;
  memcpy(words, &c, sizeof words);
  size_t found = kWords;
  for (size_t i = 0; i < kWords; i++) {
    if (!words[i]) continue;
    if (found != kWords || words[i] != flags) return kWords;
    found = i;
  }
  return found;
}

}  // namespace

bool libc_find_cond_flags(int (*init)(pthread_cond_t*, const pthread_condattr_t*)) {
  size_t word = only_word(kLibcCondShared, init);
  if (word == kWords || only_word(kLibcCondShared | kLibcCondMonotonic, init) != word) return false;
  libc_cond_flags_word = word;
  return true;
}

}  // namespace fiberthread
