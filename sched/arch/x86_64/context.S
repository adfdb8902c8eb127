// SPDX-License-Identifier: MIT
// The context switch on x86-64.
//
// A context that is off its CPU is this frame on its own stack, and Context::sp points at its low end. context.h has it as struct
// SavedFrame, and asserts the offsets.
//
//      sp + 72   end of the frame: rsp of the caller once it goes on
//      sp + 64   rip   return address of fiberthread_switch
//      sp + 56   rbp
//      sp + 48   rbx   in a new fiber: its entry function
//      sp + 40   r12   in a new fiber: the argument
//      sp + 32   r13
//      sp + 24   r14
//      sp + 16   r15
//      sp +  8   base of GS, if user code may write it itself (FSGSBASE)
//      sp +  6   (unused, 2 bytes)
//      sp +  4   x87 control word, 2 bytes
//      sp +  0   mxcsr, 4 bytes
//
// Old and new frame have the same form, so the CFI stays right across the instruction that changes rsp.

#define CONTEXT_SP 0
#define CONTEXT_TP 8
#define FRAME_MXCSR 0
#define FRAME_X87 4
#define FRAME_GS 8
// Rounding, masks, DAZ, FTZ and AMD's misaligned mode. The rest are sticky flags, which a call may change anyway.
#define MXCSR_CONTROL 0x2ffc0
#define SYS_arch_prctl 158
#define ARCH_SET_FS 0x1002

        .text
        .globl  fiberthread_switch
        .hidden fiberthread_switch
        .type   fiberthread_switch, @function
        .p2align 6
// void fiberthread_switch(Context* from: rdi, Context* to: rsi)
fiberthread_switch:
        .cfi_startproc
        endbr64
        push    %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbx, 0
        push    %r12
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r12, 0
        push    %r13
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r13, 0
        push    %r14
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r14, 0
        push    %r15
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset r15, 0
        lea     -16(%rsp), %rsp
        .cfi_adjust_cfa_offset 16
        stmxcsr FRAME_MXCSR(%rsp)
        fnstcw  FRAME_X87(%rsp)
        mov     FRAME_MXCSR(%rsp), %eax
        movzwl  FRAME_X87(%rsp), %ecx
        mov     %fs:0, %r8                      // the ABI keeps the thread pointer there
        mov     %r8, CONTEXT_TP(%rdi)
        mov     CONTEXT_TP(%rsi), %rdx
        cmpl    $0, fiberthread_fsgsbase(%rip)
        je      .Lask_kernel
        rdgsbase %r8
        mov     %r8, FRAME_GS(%rsp)
        mov     %rsp, CONTEXT_SP(%rdi)

        mov     CONTEXT_SP(%rsi), %rsp
        wrfsbase %rdx
        cmp     FRAME_GS(%rsp), %r8
        jne     .Lload_gs                       // a load is slow, and hardly any program uses GS
.Lhave_tp:
        xor     FRAME_MXCSR(%rsp), %eax
        test    $MXCSR_CONTROL, %eax
        jne     .Lload_mxcsr                    // a load is slow, so only if the control bits differ
.Lhave_mxcsr:
        cmp     %cx, FRAME_X87(%rsp)
        jne     .Lload_x87
.Lhave_x87:
        lea     16(%rsp), %rsp
        .cfi_adjust_cfa_offset -16
        pop     %r15
        .cfi_adjust_cfa_offset -8
        .cfi_restore r15
        pop     %r14
        .cfi_adjust_cfa_offset -8
        .cfi_restore r14
        pop     %r13
        .cfi_adjust_cfa_offset -8
        .cfi_restore r13
        pop     %r12
        .cfi_adjust_cfa_offset -8
        .cfi_restore r12
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbx
        pop     %rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        // The processor would predict that a ret goes back to our own caller, which is nearly always wrong.
        pop     %rcx
        .cfi_adjust_cfa_offset -8
        .cfi_register rip, rcx
        notrack jmp *%rcx

        // The unlikely paths, with the whole frame on the stack.
        .cfi_def_cfa rsp, 72
        .cfi_offset rip, -8
        .cfi_offset rbp, -16
        .cfi_offset rbx, -24
        .cfi_offset r12, -32
        .cfi_offset r13, -40
        .cfi_offset r14, -48
        .cfi_offset r15, -56
.Lload_mxcsr:
        ldmxcsr FRAME_MXCSR(%rsp)
        jmp     .Lhave_mxcsr
.Lload_x87:
        fnclex                                  // a flag left by the other fiber would fault if ours unmasks it
        fldcw   FRAME_X87(%rsp)
        jmp     .Lhave_x87
.Lload_gs:
        mov     FRAME_GS(%rsp), %r8
        wrgsbase %r8
        jmp     .Lhave_tp
.Lask_kernel:
        mov     %rsp, CONTEXT_SP(%rdi)
        mov     CONTEXT_SP(%rsi), %rsp
        mov     %rsi, %r9
        mov     %eax, %r10d
        mov     %ecx, %r8d
        mov     $SYS_arch_prctl, %eax
        mov     $ARCH_SET_FS, %edi
        mov     %rdx, %rsi
        syscall
        test    %rax, %rax
        jne     .Lrefused
        mov     %r10d, %eax
        mov     %r8d, %ecx
        jmp     .Lhave_tp
.Lrefused:
        and     $-16, %rsp                      // the ABI's alignment for a call
        call    fiberthread_no_switch
        ud2
        .cfi_endproc
        .size   fiberthread_switch, . - fiberthread_switch

// The first code of a fiber. The switch jumps here with an empty stack, and with rbx and r12 as in the drawing. It has no caller, so
// unwinding ends here. Unwinders look up the byte before a return address: hence the nop.
        .globl  fiberthread_entry
        .hidden fiberthread_entry
        .type   fiberthread_entry, @function
        .p2align 4
        .cfi_startproc
        .cfi_def_cfa rsp, 0
        .cfi_undefined rip
        nop
fiberthread_entry:
        endbr64
        xor     %ebp, %ebp
        mov     %r12, %rdi
        call    *%rbx
        // fiberthread_end finds a return address of 0. It is jumped to, after entry has returned, so that the processor predicts no return
        // to this fiber when the next one goes on.
        push    $0
        jmp     fiberthread_end
        .cfi_endproc
        .size   fiberthread_entry, . - fiberthread_entry

#include "sched/arch/x86_64/asm_end.h"
