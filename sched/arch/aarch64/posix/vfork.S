// SPDX-License-Identifier: MIT
// pid_t vfork(void), as in x86_64/posix/vfork.S. Here the return address is in a register anyway, and must be there across the system call.
#define SYS_clone 220
#define VFORK_FLAGS 0x4111                      // CLONE_VFORK | CLONE_VM | SIGCHLD

        .section fiberthread_program, "ax", @progbits  // as program_syscall(): the call counts as the program's
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
        mov     x1, #0                          // the child runs on this stack
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
