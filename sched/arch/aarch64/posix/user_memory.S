// SPDX-License-Identifier: MIT
// Accesses that may fault; see shim/user_memory.h. The functions have no frame, so the handler of a fault can leave them at any
// instruction.
        .text
        .globl fiberthread_user_load, fiberthread_user_exchange, fiberthread_user_copy, fiberthread_user_end, fiberthread_user_fault
        .hidden fiberthread_user_load, fiberthread_user_exchange, fiberthread_user_copy, fiberthread_user_end, fiberthread_user_fault
        .type fiberthread_user_load, %function
        .type fiberthread_user_exchange, %function
        .type fiberthread_user_copy, %function
fiberthread_user_load:
        .cfi_startproc
        hint 34                                                 // bti c
        ldar w2, [x0]
        str w2, [x1]
        mov x0, 0
        ret
        .cfi_endproc
        .size fiberthread_user_load, . - fiberthread_user_load
fiberthread_user_exchange:
        .cfi_startproc
        hint 34
        ldr w3, [x1]
1:      ldaxr w4, [x0]
        cmp w4, w3
        b.ne 2f
        stlxr w5, w2, [x0]
        cbnz w5, 1b
        mov x0, 0
        ret
2:      clrex
        str w4, [x1]
        mov x0, 1
        ret
        .cfi_endproc
        .size fiberthread_user_exchange, . - fiberthread_user_exchange
fiberthread_user_copy:
        .cfi_startproc
        hint 34
1:      subs x2, x2, 4
        b.lo 2f
        ldr w3, [x1, x2]
        str w3, [x0, x2]
        b 1b
2:      mov x0, 0
        ret
fiberthread_user_end:
fiberthread_user_fault:
        mov x0, -14                                             // -EFAULT
        ret
        .cfi_endproc
        .size fiberthread_user_copy, . - fiberthread_user_copy

#include "sched/arch/aarch64/asm_end.h"
