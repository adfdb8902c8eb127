// SPDX-License-Identifier: MIT
// pid_t vfork(void). Parent and child return from the same frame, the child first. What the child calls then overwrites the return address.
// So the return address is kept in a register, of which each has its own.
#define SYS_vfork 58

        .section fiberthread_program, "ax", @progbits  // as program_syscall(): the call counts as the program's
        .globl  vfork, __vfork
        .type   vfork, @function
        .type   __vfork, @function
vfork:
__vfork:
        .cfi_startproc
        endbr64
        sub     $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    fiberthread_vfork_begin
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        pop     %rdi                            // the kernel does not change rdi
        .cfi_adjust_cfa_offset -8
        .cfi_register rip, rdi
        mov     $SYS_vfork, %eax
        syscall
        push    %rdi
        .cfi_adjust_cfa_offset 8
        .cfi_offset rip, -8
        test    %eax, %eax
        jnz     1f
        ret                                     // in the child
1:      mov     %rax, %rdi
        sub     $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    fiberthread_vfork_end
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   vfork, . - vfork
        .size   __vfork, . - __vfork

#include "sched/arch/x86_64/asm_end.h"
