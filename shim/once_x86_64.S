// void fiberthread_once_call(void (*fn)()): calls fn in a frame with a personality, and no more.
        .text
        .globl fiberthread_once_call
        .hidden fiberthread_once_call
        .type fiberthread_once_call, @function
fiberthread_once_call:
        .cfi_startproc
        .cfi_personality 0x1b, fiberthread_once_personality     // pc-relative, 4 bytes
        endbr64
        push %rbp                                               // keeps the stack aligned
        .cfi_adjust_cfa_offset 8
        call *%rdi
        pop %rbp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size fiberthread_once_call, . - fiberthread_once_call

#include "sched/asm_end.h"
