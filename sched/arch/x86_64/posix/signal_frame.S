// SPDX-License-Identifier: MIT
// The end of a handler of the program, on x86-64; and calls on another stack.
//
// frame_enter() (signal_frame.cpp) has laid out this frame on the stack that the handler runs on, and has let the kernel jump into the
// handler with rsp = frame. signal_frame.h has it as struct Frame, and signal_frame.cpp asserts the offsets. From the handler's ret until
// iretq, rsp is frame + 8. So wherever a signal finds the fiber in here, all registers of the interrupted code are in the frame, and the
// return can be begun anew.
//
//      frame +   0   fiberthread_sigreturn, where the handler returns to
//      frame +   8   the kernel's ucontext, 304 bytes; at the very end, its first 40 bytes (flags, link, stack) are
//                    overwritten by the words for iretq: rip, cs, rflags, rsp, ss
//      frame + 312   siginfo, 128 bytes
//      frame + 440   tls_busy as it was
//      above         extended state as the kernel saved it, on a multiple of 64

// From rsp = frame + 8.
#define IRET 0
#define GREGS 40
#define UC_RSP 160
#define UC_RIP 168
#define UC_FLAGS 176
#define UC_FPREGS 224
#define BUSY 432

#define XSTATE_MAGIC 464
#define XSTATE_FEATURES 472
#define MAGIC 0x46505853
#define INTERRUPT_SAFE_POINT 2

        // Says that register `number` of DWARF is at rsp + `offset`. The offset is written in two bytes.
        .macro  AT number, offset
        .cfi_escape 0x10, \number, 3, 0x77, ((\offset) & 0x7f) | 0x80, (\offset) >> 7
        .endm

        .text
        .globl  fiberthread_sigreturn, fiberthread_sigreturn_end
        .hidden fiberthread_sigreturn, fiberthread_sigreturn_end
        .type   fiberthread_sigreturn, @function
        .p2align 4
        .cfi_startproc simple
        .cfi_signal_frame
        .cfi_escape 0x0f, 4, 0x77, (UC_RSP & 0x7f) | 0x80, UC_RSP >> 7, 0x06
        AT      8, GREGS+0*8
        AT      9, GREGS+1*8
        AT      10, GREGS+2*8
        AT      11, GREGS+3*8
        AT      12, GREGS+4*8
        AT      13, GREGS+5*8
        AT      14, GREGS+6*8
        AT      15, GREGS+7*8
        AT      5, GREGS+8*8                // rdi
        AT      4, GREGS+9*8                // rsi
        AT      6, GREGS+10*8               // rbp
        AT      3, GREGS+11*8               // rbx
        AT      1, GREGS+12*8               // rdx
        AT      0, GREGS+13*8               // rax
        AT      2, GREGS+14*8               // rcx
        AT      7, UC_RSP
        AT      16, UC_RIP
        nop                                     // for unwinders that look up the byte before
fiberthread_sigreturn:
        lea     -8(%rsp), %rdi
        cld
        call    fiberthread_signal_leave        // Busy from here on
        mov     _ZN11fiberthread8tls_busyE@gottpoff(%rip), %rcx
        mov     BUSY(%rsp), %edx
        mov     %edx, %fs:(%rcx)
        test    %rax, %rax
        je      1f
        testl   $INTERRUPT_SAFE_POINT, (%rax)   // was a signal recorded meanwhile?
        jne     fiberthread_sigreturn
1:      mov     UC_FPREGS(%rsp), %rdi
        cmpl    $MAGIC, XSTATE_MAGIC(%rdi)
        jne     2f
        mov     XSTATE_FEATURES(%rdi), %eax
        mov     4 + XSTATE_FEATURES(%rdi), %edx
        xrstor64 (%rdi)
        jmp     3f
2:      fxrstor64 (%rdi)
3:      mov     UC_RIP(%rsp), %rax
        mov     %rax, IRET(%rsp)
        mov     %cs, %eax
        mov     %rax, IRET + 8(%rsp)
        mov     UC_FLAGS(%rsp), %rax
        mov     %rax, IRET + 16(%rsp)
        mov     UC_RSP(%rsp), %rax
        mov     %rax, IRET + 24(%rsp)
        mov     %ss, %eax
        mov     %rax, IRET + 32(%rsp)
        mov     GREGS + 0 * 8(%rsp), %r8
        mov     GREGS + 1 * 8(%rsp), %r9
        mov     GREGS + 2 * 8(%rsp), %r10
        mov     GREGS + 3 * 8(%rsp), %r11
        mov     GREGS + 4 * 8(%rsp), %r12
        mov     GREGS + 5 * 8(%rsp), %r13
        mov     GREGS + 6 * 8(%rsp), %r14
        mov     GREGS + 7 * 8(%rsp), %r15
        mov     GREGS + 8 * 8(%rsp), %rdi
        mov     GREGS + 9 * 8(%rsp), %rsi
        mov     GREGS + 10 * 8(%rsp), %rbp
        mov     GREGS + 11 * 8(%rsp), %rbx
        mov     GREGS + 12 * 8(%rsp), %rdx
        mov     GREGS + 13 * 8(%rsp), %rax
        mov     GREGS + 14 * 8(%rsp), %rcx
        iretq                                   // writes nothing on the interrupted stack
        .cfi_endproc
fiberthread_sigreturn_end:
        .size   fiberthread_sigreturn, . - fiberthread_sigreturn

// void fiberthread_call_on(char* top: rdi, void (*function)(void*): rsi, void* argument: rdx)
        .globl  fiberthread_call_on
        .hidden fiberthread_call_on
        .type   fiberthread_call_on, @function
        .p2align 4
fiberthread_call_on:
        .cfi_startproc
        endbr64
        push    %rbp
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset rbp, 0
        mov     %rsp, %rbp
        .cfi_def_cfa_register rbp
        mov     %rdi, %rsp
        and     $-16, %rsp
        mov     %rdx, %rdi
        call    *%rsi
        mov     %rbp, %rsp
        .cfi_def_cfa_register rsp
        pop     %rbp
        .cfi_adjust_cfa_offset -8
        .cfi_restore rbp
        ret
        .cfi_endproc
        .size   fiberthread_call_on, . - fiberthread_call_on

#include "sched/arch/x86_64/asm_end.h"
