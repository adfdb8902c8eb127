// SPDX-License-Identifier: MIT
// The end of a handler of the program, and of a call that the scheduler has injected, on AArch64; and calls on another stack.
//
// frame_enter() or frame_inject() (signal_frame.cpp) has laid out this frame on the stack that the handler runs on, as the kernel would. sp
// points to it when the handler returns, and stays there to the end. So wherever a signal finds the fiber in here, all registers of the
// interrupted code are in the frame, and the return can be begun anew.
//
//      sp +    0   siginfo, 128 bytes
//      sp +  128   ucontext; its flags hold tls_busy as it was
//      above       further state, if the kernel has saved any; a frame record

#define UC_FLAGS 128
#define REGS 312
#define UC_SP 560
#define UC_PC 568
#define INTERRUPT_SAFE_POINT 2
#define SYS_rt_sigreturn 139

        // Says that register `number` of DWARF is at sp + `offset`. The offset is written in two bytes.
        .macro  AT number, offset
        .cfi_escape 0x10, \number, 3, 0x8f, ((\offset) & 0x7f) | 0x80, (\offset) >> 7
        .endm

        .text
        .globl  fiberthread_sigreturn, fiberthread_sigreturn_end
        .hidden fiberthread_sigreturn, fiberthread_sigreturn_end
        .type   fiberthread_sigreturn, %function
        .p2align 4
        .cfi_startproc simple
        .cfi_signal_frame
        .cfi_return_column 96
        .cfi_escape 0x0f, 4, 0x8f, (UC_SP & 0x7f) | 0x80, UC_SP >> 7, 0x06
        .set    number, 0
        .rept   31
        AT      number, REGS+number*8
        .set    number, number + 1
        .endr
        AT      31, UC_SP
        AT      96, UC_PC
        nop                                     // for unwinders that look up the instruction before
fiberthread_sigreturn:
        mov     x0, sp
        bl      fiberthread_signal_leave        // Busy from here on
        adrp    x1, :gottprel:_ZN11fiberthread8tls_busyE
        ldr     x1, [x1, #:gottprel_lo12:_ZN11fiberthread8tls_busyE]
        mrs     x2, tpidr_el0
        ldr     w3, [sp, UC_FLAGS]
        str     w3, [x2, x1]
        cbz     x0, 1f
        ldr     w1, [x0]
        tbnz    w1, #1, fiberthread_sigreturn   // a signal was recorded meanwhile
1:      mov     x8, SYS_rt_sigreturn
        svc     0
        .cfi_endproc
fiberthread_sigreturn_end:
        .size   fiberthread_sigreturn, . - fiberthread_sigreturn

// void fiberthread_call_on(char* top: x0, void (*function)(void*): x1, void* argument: x2)
        .globl  fiberthread_call_on
        .hidden fiberthread_call_on
        .type   fiberthread_call_on, %function
        .p2align 4
fiberthread_call_on:
        .cfi_startproc
        hint    #34                             // bti c
        stp     x29, x30, [sp, #-16]!
        .cfi_adjust_cfa_offset 16
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov     x29, sp
        .cfi_def_cfa_register x29
        and     x0, x0, #-16
        mov     sp, x0
        mov     x0, x2
        blr     x1
        mov     sp, x29
        .cfi_def_cfa_register sp
        ldp     x29, x30, [sp], #16
        .cfi_adjust_cfa_offset -16
        .cfi_restore x29
        .cfi_restore x30
        ret
        .cfi_endproc
        .size   fiberthread_call_on, . - fiberthread_call_on

#include "sched/arch/aarch64/asm_end.h"
