// void fiberthread_once_call(void (*fn)()): calls fn in a frame with a personality, and no more.
        .text
        .globl fiberthread_once_call
        .hidden fiberthread_once_call
        .type fiberthread_once_call, %function
fiberthread_once_call:
        .cfi_startproc
        .cfi_personality 0x1b, fiberthread_once_personality     // pc-relative, 4 bytes
        hint 34                                                 // bti c
        stp x29, x30, [sp, -16]!
        .cfi_def_cfa_offset 16
        .cfi_offset x29, -16
        .cfi_offset x30, -8
        mov x29, sp
        blr x0
        ldp x29, x30, [sp], 16
        .cfi_def_cfa_offset 0
        .cfi_restore x29
        .cfi_restore x30
        ret
        .cfi_endproc
        .size fiberthread_once_call, . - fiberthread_once_call

#include "sched/asm_end.h"
