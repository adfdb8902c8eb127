// SPDX-License-Identifier: MIT
// Two landings for pthread_exit of main (shim/thread.cpp). They differ only in their address, which shows where a jmp_buf has the program
// counter. When called, each returns after __sigsetjmp. A longjmp to it goes on with the stack pointer of libc's start code, which has no
// frame of ours.
        .macro  landing name
        .globl  \name
        .hidden \name
        .type   \name, @function
\name:
        .cfi_startproc
        endbr64
        sub     $8, %rsp
        .cfi_adjust_cfa_offset 8
        xor     %esi, %esi
        call    __sigsetjmp@plt
        endbr64                                 // longjmp's jump comes here
        test    %eax, %eax
        jne     1f
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_undefined rip                      // unwinding ends here
1:      and     $-16, %rsp
        call    fiberthread_main_landed
        ud2
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text
        landing fiberthread_landing
        landing fiberthread_landing_elsewhere

#include "sched/arch/x86_64/asm_end.h"
