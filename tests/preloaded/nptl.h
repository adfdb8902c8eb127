// SPDX-License-Identifier: MIT
// What a release of libc does wrongly is not asked of it when its own threads run a test. Of the library it is, with the same output.
#pragma once
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

// n if threads are those of glibc 2.n, 0 if they are the library's. Not by gnu_get_libc_version(), which a program may have itself.
static inline int nptl_release(void) {
  char libc[32] = "";
  int n = 0;
  if (dlsym(RTLD_DEFAULT, "fiberthread_self")) return 0;
  dlerror();  // nobody has asked
  confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc);
  sscanf(libc, "glibc 2.%d", &n);
  assert(n);
  return n;
}
