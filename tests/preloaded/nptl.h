// SPDX-License-Identifier: MIT
// When libc's own threads run a test, the test leaves out what that release of libc does wrongly. The library has to do it, with the same
// output.
#pragma once
#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Returns n if threads are those of glibc 2.n, and 0 if they are the library's. After a self-check that was made to fail they are glibc's,
// although the library is there. It does not use gnu_get_libc_version(), which a program may define itself.
static inline int nptl_release(void) {
  char libc[32] = "";
  int n = 0;
  if (dlsym(RTLD_DEFAULT, "fiberthread_self") && !getenv("FIBERTHREAD_SELFCHECK")) return 0;
  dlerror();  // forgets the error, which no code has asked for
  confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc);
  sscanf(libc, "glibc 2.%d", &n);
  assert(n);
  return n;
}
