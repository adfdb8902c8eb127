// SPDX-License-Identifier: MIT
// What next_access() says of instructions, each written in machine code as an assembler makes it.
#include "sched/arch/step.h"

#include <sys/syscall.h>

#include <cstring>

#include "tests/test.h"

using namespace fiberthread;

#if defined(__x86_64__)
namespace {

ucontext_t uc;
uint8_t code[16];
unsigned char memory[64];

void set(int reg, uint64_t value) { uc.uc_mcontext.gregs[reg] = static_cast<greg_t>(value); }

template <size_t N>
Access look(const unsigned char (&bytes)[N]) {
  memset(code, 0x90, sizeof code);
  memcpy(code, bytes, N);
  set(REG_RIP, reinterpret_cast<uintptr_t>(code));
  return next_access(&uc);
}
uintptr_t at(int offset) { return reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(offset); }

#define IS(kind_, address_, ...) \
  do { \
    Access a = look({__VA_ARGS__}); \
    cr_assert(a.kind == Access::kind_, "%s: %d", #__VA_ARGS__, a.kind); \
    cr_assert(a.address == (address_), "%s: %lx", #__VA_ARGS__, a.address); \
  } while (0)
#define UPDATES(size_, address_, ...) \
  do { \
    IS(ReadThenWrite, address_, __VA_ARGS__); \
    cr_assert(look({__VA_ARGS__}).size == (size_)); \
  } while (0)

}  // namespace

Test(step, operands) {
  set(REG_RAX, at(0));
  set(REG_RBX, at(8));
  set(REG_RCX, 2);
  set(REG_R8, at(16));
  set(REG_R9, 3);
  set(REG_R13, at(24));
  set(REG_RSP, at(32));
  set(REG_RSI, at(40));
  set(REG_RDI, at(48));
  auto next = [](int length, int displacement) {
    return reinterpret_cast<uintptr_t>(code) + static_cast<uintptr_t>(length + displacement);
  };
  IS(Once, at(0), 0x8b, 0x08);                                      // mov (%rax), %ecx
  IS(Once, at(-4), 0x89, 0x48, 0xfc);                               // mov %ecx, -4(%rax)
  IS(Once, at(0x100), 0x8b, 0x88, 0, 1, 0, 0);                      // mov 256(%rax), %ecx
  IS(Once, at(8 + 2 * 4 + 1), 0x8b, 0x44, 0x8b, 1);                 // mov 1(%rbx,%rcx,4), %eax
  IS(Once, at(16 + 3 * 8), 0x4b, 0x8b, 0x04, 0xc8);                 // mov (%r8,%r9,8), %rax
  IS(Once, at(24), 0x41, 0x8b, 0x45, 0x00);                         // mov 0(%r13), %eax
  IS(Once, at(32), 0x8b, 0x04, 0x24);                               // mov (%rsp), %eax
  IS(Once, next(6, 0x10), 0x8b, 0x05, 0x10, 0, 0, 0);               // mov 16(%rip), %eax
  IS(Once, next(10, 0x10), 0xc7, 0x05, 0x10, 0, 0, 0, 1, 0, 0, 0);  // movl $1, 16(%rip)
  IS(Once, next(9, 0x10), 0x66, 0xc7, 0x05, 0x10, 0, 0, 0, 1, 0);   // movw $1, 16(%rip)
  IS(Once, next(7, 0x10), 0x80, 0x3d, 0x10, 0, 0, 0, 5);            // cmpb $5, 16(%rip)
  IS(Once, at(8), 0x0f, 0xb6, 0x03);                                // movzbl (%rbx), %eax
  IS(Once, at(8), 0x66, 0x0f, 0x6f, 0x03);                          // movdqa (%rbx), %xmm0
  IS(Once, at(8), 0xc5, 0xfd, 0x6f, 0x03);                          // vmovdqa (%rbx), %ymm0
  IS(Once, at(16), 0xc4, 0xc1, 0x7d, 0x6f, 0x00);                   // vmovdqa (%r8), %ymm0
  IS(Once, at(48), 0xf3, 0xa4);                                     // rep movsb
  IS(Once, at(8), 0xf0, 0xff, 0x03);                                // lock incl (%rbx)
  IS(Once, at(8), 0x87, 0x03);                                      // xchg %eax, (%rbx)
  UPDATES(4, at(8), 0xff, 0x03);                                    // incl (%rbx)
  UPDATES(8, at(8), 0x48, 0x01, 0x03);                              // add %rax, (%rbx)
  UPDATES(2, at(8), 0x66, 0x83, 0x2b, 1);                           // subw $1, (%rbx)
  UPDATES(4, next(7, 0x10), 0x83, 0x05, 0x10, 0, 0, 0, 1);          // addl $1, 16(%rip)
  UPDATES(1, next(7, 0x10), 0x80, 0x0d, 0x10, 0, 0, 0, 1);          // orb $1, 16(%rip)
  UPDATES(4, at(8), 0x0f, 0xc1, 0x03);                              // xadd %eax, (%rbx)
  UPDATES(8, at(8), 0x48, 0xf7, 0x1b);                              // negq (%rbx)
}

Test(step, no_access) {
  IS(None, 0u, 0x01, 0xc8);                    // add %ecx, %eax
  IS(None, 0u, 0x48, 0x8d, 0x04, 0x0b);        // lea (%rbx,%rcx), %rax
  IS(None, 0u, 0x0f, 0x1f, 0x44, 0x00, 0x00);  // nopl 0(%rax,%rax)
  IS(None, 0u, 0xf3, 0x0f, 0x1e, 0xfa);        // endbr64
  IS(None, 0u, 0x64, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0);
  IS(None, 0u, 0x55);                       // push %rbp
  IS(None, 0u, 0xe8, 0, 0, 0, 0);           // call
  IS(None, 0u, 0xff, 0x25, 0x10, 0, 0, 0);  // jmp *16(%rip)
  IS(None, 0u, 0xff, 0x35, 0x10, 0, 0, 0);  // push 16(%rip)
  IS(None, 0u, 0xc5, 0xf8, 0x77);           // vzeroupper
  IS(None, 0u, 0x0f, 0x84, 0, 0, 0, 0);     // je
}

Test(step, barred) {
  set(REG_RAX, SYS_rt_sigprocmask);
  IS(Barred, 0u, 0x0f, 0x05);  // syscall
  set(REG_RAX, SYS_mmap);
  IS(None, 0u, 0x0f, 0x05);
  IS(Barred, 0u, 0x9c);        // pushfq
  IS(Barred, 0u, 0x66, 0x9d);  // popfw
  IS(Barred, 0u, 0xcc);        // int3
}
#else
Test(step, none) { cr_assert(!kCanStep); }
#endif
