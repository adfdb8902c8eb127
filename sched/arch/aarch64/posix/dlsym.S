// SPDX-License-Identifier: MIT
// dlsym(handle, name) and dlvsym(handle, name, version). They return the answer of fiberthread_dl_ours(), if it has one. Otherwise they
// jump to the next definition of the function, which then sees the caller's own return address.
        .text

        .macro ours_or_next name, next, version=x2
        .globl \name
        .type \name, %function
\name:
        .cfi_startproc
        hint 34                                                 // bti c
        stp x29, x30, [sp, -48]!
        .cfi_def_cfa_offset 48
        .cfi_offset x29, -48
        .cfi_offset x30, -40
        mov x29, sp
        stp x0, x1, [sp, 16]
        str x2, [sp, 32]
        mov x2, \version
        mov x3, x30                                             // the return address
        bl fiberthread_dl_ours
        mov x16, x0
        ldp x0, x1, [sp, 16]
        ldr x2, [sp, 32]
        ldp x29, x30, [sp], 48
        .cfi_def_cfa_offset 0
        .cfi_restore x29
        .cfi_restore x30
        cbnz x16, 1f
        adrp x16, \next
        ldr x16, [x16, :lo12:\next]
        br x16
1:      mov x0, x16
        ret
        .cfi_endproc
        .size \name, . - \name
        .endm

        ours_or_next dlsym, fiberthread_next_dlsym, version=0
        ours_or_next dlvsym, fiberthread_next_dlvsym

#include "sched/arch/aarch64/asm_end.h"
