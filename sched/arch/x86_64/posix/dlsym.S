// SPDX-License-Identifier: MIT
// dlsym(handle, name) and dlvsym(handle, name, version). They return the answer of fiberthread_dl_ours(), if it has one. Otherwise they
// jump to the next definition of the function, which then sees the caller's own return address.
        .text

        .macro ours_or_next name, next, version=%rdx
        .globl \name
        .type \name, @function
\name:
        .cfi_startproc
        endbr64
        push %rdi
        .cfi_adjust_cfa_offset 8
        push %rsi
        .cfi_adjust_cfa_offset 8
        push %rdx                                               // dlsym has none: it keeps the stack aligned
        .cfi_adjust_cfa_offset 8
        mov \version, %rdx
        mov 24(%rsp), %rcx                                      // the return address
        call fiberthread_dl_ours
        pop %rdx
        .cfi_adjust_cfa_offset -8
        pop %rsi
        .cfi_adjust_cfa_offset -8
        pop %rdi
        .cfi_adjust_cfa_offset -8
        test %rax, %rax
        jne 1f
        jmp *\next(%rip)
1:      ret
        .cfi_endproc
        .size \name, . - \name
        .endm

        ours_or_next dlsym, fiberthread_next_dlsym, version=$0
        ours_or_next dlvsym, fiberthread_next_dlvsym

#include "sched/arch/x86_64/asm_end.h"
