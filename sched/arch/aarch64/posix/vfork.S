// SPDX-License-Identifier: MIT
// pid_t vfork(void). As in x86_64/vfork.S. The return address is in a register in any case, and must be there across the call.
#define SYS_clone 220
#define VFORK_FLAGS 0x4111                      // CLONE_VFORK | CLONE_VM | SIGCHLD

        .section fiberthread_program, "ax", @progbits  // program_syscall()'s: the call is the program's
        .globl  vfork, __vfork
        .type   vfork, %function
        .type   __vfork, %function
vfork:
__vfork:
        .cfi_startproc
        hint    #34                             // bti c
        stp     x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        bl      fiberthread_vfork_begin
        ldp     x29, x30, [sp], #16
        .cfi_adjust_cfa_offset -16
        .cfi_restore x29
        .cfi_restore x30
        mov     x0, #VFORK_FLAGS
        mov     x1, #0                          // on this stack
        mov     x2, #0
        mov     x3, #0
        mov     x4, #0
        mov     x8, #SYS_clone
        svc     #0
        cbnz    x0, 1f
        ret                                     // in the child
1:      stp     x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        bl      fiberthread_vfork_end
        ldp     x29, x30, [sp], #16
        .cfi_adjust_cfa_offset -16
        ret
        .cfi_endproc
        .size   vfork, . - vfork
        .size   __vfork, . - __vfork

#include "sched/arch/aarch64/asm_end.h"
