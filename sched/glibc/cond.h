// SPDX-License-Identifier: MIT
// The form of libc's condition variables, as far as ours keep to it: one word has what the attributes say.
#pragma once
#include <pthread.h>

#include <cstddef>

namespace fiberthread {

constexpr unsigned kLibcCondShared = 1, kLibcCondMonotonic = 2;  // libc counts in the rest of the word

// Which word of the object that is. What the compiler's headers say, until libc_find_cond_flags() knows.
extern size_t libc_cond_flags_word __attribute__((visibility("hidden")));
inline unsigned* libc_cond_flags(pthread_cond_t* c) { return reinterpret_cast<unsigned*>(c) + libc_cond_flags_word; }
inline const unsigned* libc_cond_flags(const pthread_cond_t* c) { return reinterpret_cast<const unsigned*>(c) + libc_cond_flags_word; }

// Finds that word by objects that `init`, libc's own pthread_cond_init(), makes. Returns false if they have another form than we know.
bool libc_find_cond_flags(int (*init)(pthread_cond_t*, const pthread_condattr_t*));

}  // namespace fiberthread
