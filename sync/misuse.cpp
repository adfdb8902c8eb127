// SPDX-License-Identifier: MIT
#include "fiberthread/misuse.h"

#include <stdlib.h>

#include "sched/syscall.h"

namespace fiberthread {

void report_misuse(const char* type, const void* object, const char* what) {
  char line[200];
  unsigned n = 0;
  auto put = [&](const char* s) {
    while (*s && n < sizeof line - 1) line[n++] = *s++;
  };
  char address[19] = "0x";
  for (int i = 0; i < 16; i++) address[2 + i] = "0123456789abcdef"[reinterpret_cast<uintptr_t>(object) >> (60 - 4 * i) & 15];
  put("fiberthread: ");
  put(type);
  put(" ");
  put(address);
  put(" ");
  put(what);
  line[n++] = '\n';
  raw_syscall(SYS_write, 2, arg(line), static_cast<long>(n));
  abort();
}

}  // namespace fiberthread
