// SPDX-License-Identifier: MIT
// The context switch on AArch64.
//
// A context that is off its CPU is this frame on its own stack, and Context::sp points at its low end. context.h has it as struct
// SavedFrame, and asserts the offsets. Only the low halves of v8-v15 survive a call, so only those are kept.
//
//      sp + 176  end of the frame: sp of the caller once it goes on
//      sp + 168  (unused)
//      sp + 160  fpcr
//      sp + 152  d15
//      sp + 144  d14
//      sp + 136  d13
//      sp + 128  d12
//      sp + 120  d11
//      sp + 112  d10
//      sp + 104  d9
//      sp +  96  d8
//      sp +  88  x30   return address of fiberthread_switch
//      sp +  80  x29
//      sp +  72  x28
//      sp +  64  x27
//      sp +  56  x26
//      sp +  48  x25
//      sp +  40  x24
//      sp +  32  x23
//      sp +  24  x22
//      sp +  16  x21
//      sp +   8  x20   in a new fiber: the argument
//      sp +   0  x19   in a new fiber: its entry function
//
// Old and new frame have the same form, so the CFI stays right across the instruction that changes sp.

#define CONTEXT_SP 0
#define CONTEXT_TP 8
#define FRAME_SIZE 176
#define FRAME_X19 0
#define FRAME_X21 16
#define FRAME_X23 32
#define FRAME_X25 48
#define FRAME_X27 64
#define FRAME_X29 80
#define FRAME_D8 96
#define FRAME_D10 112
#define FRAME_D12 128
#define FRAME_D14 144
#define FRAME_FPCR 160

        .text
        .globl  fiberthread_switch
        .hidden fiberthread_switch
        .type   fiberthread_switch, %function
        .p2align 6
// void fiberthread_switch(Context* from: x0, Context* to: x1)
fiberthread_switch:
        .cfi_startproc
        hint    #34                             // bti c
        sub     sp, sp, #FRAME_SIZE
        .cfi_adjust_cfa_offset FRAME_SIZE
        stp     x29, x30, [sp, #FRAME_X29]
        .cfi_rel_offset x29, FRAME_X29
        .cfi_rel_offset x30, FRAME_X29 + 8
        stp     x19, x20, [sp, #FRAME_X19]
        .cfi_rel_offset x19, FRAME_X19
        .cfi_rel_offset x20, FRAME_X19 + 8
        stp     x21, x22, [sp, #FRAME_X21]
        .cfi_rel_offset x21, FRAME_X21
        .cfi_rel_offset x22, FRAME_X21 + 8
        stp     x23, x24, [sp, #FRAME_X23]
        .cfi_rel_offset x23, FRAME_X23
        .cfi_rel_offset x24, FRAME_X23 + 8
        stp     x25, x26, [sp, #FRAME_X25]
        .cfi_rel_offset x25, FRAME_X25
        .cfi_rel_offset x26, FRAME_X25 + 8
        stp     x27, x28, [sp, #FRAME_X27]
        .cfi_rel_offset x27, FRAME_X27
        .cfi_rel_offset x28, FRAME_X27 + 8
        stp     d8, d9, [sp, #FRAME_D8]
        .cfi_rel_offset d8, FRAME_D8
        .cfi_rel_offset d9, FRAME_D8 + 8
        stp     d10, d11, [sp, #FRAME_D10]
        .cfi_rel_offset d10, FRAME_D10
        .cfi_rel_offset d11, FRAME_D10 + 8
        stp     d12, d13, [sp, #FRAME_D12]
        .cfi_rel_offset d12, FRAME_D12
        .cfi_rel_offset d13, FRAME_D12 + 8
        stp     d14, d15, [sp, #FRAME_D14]
        .cfi_rel_offset d14, FRAME_D14
        .cfi_rel_offset d15, FRAME_D14 + 8
        mrs     x2, fpcr                        // all of its bits are control; the flags are in fpsr
        str     x2, [sp, #FRAME_FPCR]
        mrs     x3, tpidr_el0
        mov     x4, sp
        str     x4, [x0, #CONTEXT_SP]
        str     x3, [x0, #CONTEXT_TP]

        ldr     x4, [x1, #CONTEXT_SP]
        ldr     x3, [x1, #CONTEXT_TP]
        mov     sp, x4
        msr     tpidr_el0, x3
        ldr     x5, [sp, #FRAME_FPCR]
        cmp     x5, x2
        b.ne    .Lload_fpcr                     // the load serialises on many cores, so only if they differ
.Lhave_fpcr:
        ldp     d14, d15, [sp, #FRAME_D14]
        .cfi_restore d14
        .cfi_restore d15
        ldp     d12, d13, [sp, #FRAME_D12]
        .cfi_restore d12
        .cfi_restore d13
        ldp     d10, d11, [sp, #FRAME_D10]
        .cfi_restore d10
        .cfi_restore d11
        ldp     d8, d9, [sp, #FRAME_D8]
        .cfi_restore d8
        .cfi_restore d9
        ldp     x27, x28, [sp, #FRAME_X27]
        .cfi_restore x27
        .cfi_restore x28
        ldp     x25, x26, [sp, #FRAME_X25]
        .cfi_restore x25
        .cfi_restore x26
        ldp     x23, x24, [sp, #FRAME_X23]
        .cfi_restore x23
        .cfi_restore x24
        ldp     x21, x22, [sp, #FRAME_X21]
        .cfi_restore x21
        .cfi_restore x22
        ldp     x19, x20, [sp, #FRAME_X19]
        .cfi_restore x19
        .cfi_restore x20
        ldp     x29, x30, [sp, #FRAME_X29]
        .cfi_restore x29
        .cfi_restore x30
        add     sp, sp, #FRAME_SIZE
        .cfi_adjust_cfa_offset -FRAME_SIZE
        // The processor may predict that a ret goes back to our own caller. br x30 would avoid that, but the place after a call is no
        // landing pad.
        ret

        // The unlikely path, with the whole frame on the stack.
        .cfi_def_cfa sp, FRAME_SIZE
        .cfi_rel_offset x19, FRAME_X19
        .cfi_rel_offset x20, FRAME_X19 + 8
        .cfi_rel_offset x21, FRAME_X21
        .cfi_rel_offset x22, FRAME_X21 + 8
        .cfi_rel_offset x23, FRAME_X23
        .cfi_rel_offset x24, FRAME_X23 + 8
        .cfi_rel_offset x25, FRAME_X25
        .cfi_rel_offset x26, FRAME_X25 + 8
        .cfi_rel_offset x27, FRAME_X27
        .cfi_rel_offset x28, FRAME_X27 + 8
        .cfi_rel_offset x29, FRAME_X29
        .cfi_rel_offset x30, FRAME_X29 + 8
        .cfi_rel_offset d8, FRAME_D8
        .cfi_rel_offset d9, FRAME_D8 + 8
        .cfi_rel_offset d10, FRAME_D10
        .cfi_rel_offset d11, FRAME_D10 + 8
        .cfi_rel_offset d12, FRAME_D12
        .cfi_rel_offset d13, FRAME_D12 + 8
        .cfi_rel_offset d14, FRAME_D14
        .cfi_rel_offset d15, FRAME_D14 + 8
.Lload_fpcr:
        msr     fpcr, x5
        b       .Lhave_fpcr
        .cfi_endproc
        .size   fiberthread_switch, . - fiberthread_switch

// The first code of a fiber. The switch returns here with an empty stack, and with x19 and x20 as in the drawing. It has no caller, so
// unwinding ends here. Unwinders look up the instruction before a return address: hence the nop.
        .globl  fiberthread_entry
        .hidden fiberthread_entry
        .type   fiberthread_entry, %function
        .p2align 4
        .cfi_startproc
        .cfi_def_cfa sp, 0
        .cfi_undefined x30
        nop
fiberthread_entry:
        hint    #38                             // bti jc
        mov     x29, xzr
        mov     x0, x20
        blr     x19
        mov     x30, xzr                        // a return address of 0
        b       fiberthread_end
        .cfi_endproc
        .size   fiberthread_entry, . - fiberthread_entry

#include "sched/arch/aarch64/asm_end.h"
