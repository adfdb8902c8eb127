// SPDX-License-Identifier: MIT
// The part of libc's condition variables that ours have too: one word has the flags that the attributes ask for.
#pragma once
#include <pthread.h>

#include <cstddef>

namespace fiberthread {

constexpr unsigned kLibcCondShared = 1, kLibcCondMonotonic = 2;  // libc counts in the rest of the word

// The index of that word in the object. It is what the compiler's headers say until libc_find_cond_flags() has looked.
extern size_t libc_cond_flags_word __attribute__((visibility("hidden")));
inline unsigned* libc_cond_flags(pthread_cond_t* c) { return reinterpret_cast<unsigned*>(c) + libc_cond_flags_word; }
inline const unsigned* libc_cond_flags(const pthread_cond_t* c) { return reinterpret_cast<const unsigned*>(c) + libc_cond_flags_word; }

// Finds that word in objects that `init`, libc's own pthread_cond_init(), makes. Returns false if their form is unknown.
bool libc_find_cond_flags(int (*init)(pthread_cond_t*, const pthread_condattr_t*));

}  // namespace fiberthread
