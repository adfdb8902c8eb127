// SPDX-License-Identifier: MIT
// The stubs in place of libgomp's system call instructions call this; see libgomp.cpp. Like such an instruction it changes rax, rcx and r11
// only. libgomp uses only the xmm parts of the vector registers, and its callers expect it to change all of them.
//
// To an unwinder the stub is no frame. It goes on in libgomp, as if libgomp had called this with its red zone in between. The stub's last
// jump says where: the distance is 13 bytes after the return address, and counts from 17 bytes after it.
        .macro cfi_return_address
        .cfi_escape 0x16, 16, 24                            // rip is the value of, with the CFA pushed:
        .cfi_escape 0x08, 136, 0x1c, 0x06                   // const1u 136, minus, deref: the return address
        .cfi_escape 0x12, 0x23, 13, 0x94, 4                 // dup, plus_uconst 13, deref_size 4
        .cfi_escape 0x0c, 0, 0, 0, 0x80, 0x27               // with its sign: xor 2^31,
        .cfi_escape 0x0c, 0, 0, 0, 0x80, 0x1c               // minus 2^31
        .cfi_escape 0x22, 0x23, 17                          // plus, plus_uconst 17
        .endm
        .text
        .globl fiberthread_libgomp_call
        .hidden fiberthread_libgomp_call
        .type fiberthread_libgomp_call, @function
fiberthread_libgomp_call:
        .cfi_startproc
        .cfi_def_cfa_offset 8 + 128
        cfi_return_address
        endbr64
        push %rbp
        .cfi_def_cfa_offset 16 + 128
        .cfi_offset %rbp, -(16 + 128)
        mov %rsp, %rbp
        .cfi_def_cfa_register %rbp
        push %rdi
        push %rsi
        push %rdx
        push %r8
        push %r9
        push %r10
        and $-16, %rsp
        sub $256, %rsp
        .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movups %xmm\n, 16*\n(%rsp)
        .endr
        cld
        mov %r10, %rcx
        sub $16, %rsp
        mov %rax, (%rsp)
        call fiberthread_libgomp_syscall
        add $16, %rsp
        .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movups 16*\n(%rsp), %xmm\n
        .endr
        lea -48(%rbp), %rsp
        pop %r10
        pop %r9
        pop %r8
        pop %rdx
        pop %rsi
        pop %rdi
        pop %rbp
        .cfi_def_cfa %rsp, 8 + 128
        ret
        .cfi_endproc
        .size fiberthread_libgomp_call, . - fiberthread_libgomp_call

#include "sched/arch/x86_64/asm_end.h"
