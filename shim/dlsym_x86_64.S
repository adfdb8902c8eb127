// dlsym(handle, name) and dlvsym(handle, name, version): the answer of fiberthread_dl_ours() if there is one, else a jump to what stands
// behind, which then sees the caller's own return address.
        .text
        .globl dlsym, dlvsym
        .type dlsym, @function
        .type dlvsym, @function
dlsym:
        .cfi_startproc
        endbr64
        push %rdi
        .cfi_adjust_cfa_offset 8
        push %rsi
        .cfi_adjust_cfa_offset 8
        sub $8, %rsp
        .cfi_adjust_cfa_offset 8
        xor %edx, %edx
        mov 24(%rsp), %rcx                                      // the return address
        call fiberthread_dl_ours
        add $8, %rsp
        .cfi_adjust_cfa_offset -8
        pop %rsi
        .cfi_adjust_cfa_offset -8
        pop %rdi
        .cfi_adjust_cfa_offset -8
        test %rax, %rax
        jne 1f
        jmp *fiberthread_next_dlsym(%rip)
1:      ret
        .cfi_endproc
        .size dlsym, . - dlsym
dlvsym:
        .cfi_startproc
        endbr64
        push %rdi
        .cfi_adjust_cfa_offset 8
        push %rsi
        .cfi_adjust_cfa_offset 8
        push %rdx
        .cfi_adjust_cfa_offset 8
        mov 24(%rsp), %rcx
        call fiberthread_dl_ours
        pop %rdx
        .cfi_adjust_cfa_offset -8
        pop %rsi
        .cfi_adjust_cfa_offset -8
        pop %rdi
        .cfi_adjust_cfa_offset -8
        test %rax, %rax
        jne 1f
        jmp *fiberthread_next_dlvsym(%rip)
1:      ret
        .cfi_endproc
        .size dlvsym, . - dlvsym
        .section .note.GNU-stack, "", @progbits
