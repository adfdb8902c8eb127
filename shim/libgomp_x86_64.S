// What the patched instructions of libgomp call; see libgomp.cpp. As a system call instruction it changes rax, rcx and r11 only.
// libgomp uses none of the vector registers but xmm, and its callers expect it to change all of them.
        .text
        .globl fiberthread_libgomp_call
        .hidden fiberthread_libgomp_call
        .type fiberthread_libgomp_call, @function
fiberthread_libgomp_call:
        .cfi_startproc
        push %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset %rbp, -16
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
        .cfi_def_cfa %rsp, 8
        ret
        .cfi_endproc
        .size fiberthread_libgomp_call, . - fiberthread_libgomp_call
        .section .note.GNU-stack, "", @progbits
