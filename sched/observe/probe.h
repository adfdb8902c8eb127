// SPDX-License-Identifier: MIT
// Probes in the form of SystemTap's USDT, which perf, bpftrace, SystemTap and gdb know. A probe is a no-op instruction, and a note in the
// file that says where the instruction is and where its arguments are. The form is written out here, because SystemTap's header is missing
// on most machines. `readelf -n libfiberthread.so` lists the probes, and fiberthread(7) explains their arguments.
#pragma once
#include <cstdint>

// The note has sizes, "stapsdt", and the addresses of the no-op, of .stapsdt.base (for files that were prelinked) and of a semaphore
// (none). Then come the provider, the name, and each argument as size@operand. All arguments are words.
#define FIBERTHREAD_PROBE_(name, arguments, ...) \
  asm inline volatile( \
      "990: nop\n" \
      ".pushsection .note.stapsdt,\"\",\"note\"\n" \
      ".balign 4\n" \
      ".4byte 992f-991f, 994f-993f, 3\n" \
      "991: .asciz \"stapsdt\"\n" \
      "992: .balign 4\n" \
      "993: .8byte 990b, _.stapsdt.base, 0\n" \
      ".asciz \"fiberthread\"\n" \
      ".asciz \"" name \
      "\"\n" \
      ".asciz \"" arguments \
      "\"\n" \
      "994: .balign 4\n" \
      ".popsection\n" \
      ".ifndef _.stapsdt.base\n" \
      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
      ".weak _.stapsdt.base\n" \
      ".hidden _.stapsdt.base\n" \
      "_.stapsdt.base: .space 1\n" \
      ".size _.stapsdt.base, 1\n" \
      ".popsection\n" \
      ".endif\n" ::__VA_ARGS__)
// An argument stays where it is: in a register, in memory, or as a constant. So a probe computes and loads nothing.
#define FIBERTHREAD_WORD_(x) "nor"((uint64_t)(x))
#define FIBERTHREAD_PROBE1(name, a) FIBERTHREAD_PROBE_(name, "8@%0", FIBERTHREAD_WORD_(a))
#define FIBERTHREAD_PROBE2(name, a, b) FIBERTHREAD_PROBE_(name, "8@%0 8@%1", FIBERTHREAD_WORD_(a), FIBERTHREAD_WORD_(b))
#define FIBERTHREAD_PROBE3(name, a, b, c) \
  FIBERTHREAD_PROBE_(name, "8@%0 8@%1 8@%2", FIBERTHREAD_WORD_(a), FIBERTHREAD_WORD_(b), FIBERTHREAD_WORD_(c))
