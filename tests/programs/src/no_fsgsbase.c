// SPDX-License-Identifier: MIT
// Preloaded before the library, this makes the kernel seem to forbid user code to write the thread pointer, as on processors before 2012,
// on Linux before 5.9 and in some virtual machines.
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c) {
  long r;
  asm volatile("syscall" : "=a"(r) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}

// The library calls this before libc is ready.
unsigned long getauxval(unsigned long type) {
  static ElfW(auxv_t) table[64];
  if (!table[0].a_type) {
    long fd = call(SYS_open, (long)"/proc/self/auxv", O_RDONLY, 0);
    call(SYS_read, fd, (long)table, sizeof table - sizeof *table);
    call(SYS_close, fd, 0, 0);
  }
  for (int i = 0; table[i].a_type; i++)
    if (table[i].a_type == type) return table[i].a_un.a_val & (type == AT_HWCAP2 ? ~2ul : ~0ul);
  return 0;
}
