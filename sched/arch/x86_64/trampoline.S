// SPDX-License-Identifier: MIT
// Where an interrupted fiber goes on when the signal handler has injected a call (inject.cpp). The handler has left two words below the red
// zone. All registers are still those of the interrupted code. The stack is then:
//
//      cfa          rsp of the interrupted code
//      cfa - 128    its red zone
//      cfa - 136    rip of the interrupted code     } written by the handler
//      cfa - 144    the function to call            }
//      cfa - 152    rflags
//      cfa - 160    rbp                             <- rbp from here on
//      cfa - 168    rax, then rcx, rdx, rbx, rsi, rdi, r8 ... r15
//      cfa - 272    r15
//                   (gap to a multiple of 64)
//      rsp          area of xsavec, compacted; as large as the components in use need. Processors without it (before Skylake and Zen, and
//                   some virtual ones) have xsave, whose area has room for all components, or only fxsave.
//
// Written as a signal frame, so that unwinders take the interrupted rip as it is and not as a return address.

#define FUNCTION 16             // from rbp
#define GPRS 112
#define XSAVE_HEADER 512
#define X87_SSE 0x3
#define X87 0x1
#define AVX_ZMM 0x44
#define BEYOND_AVX ~0x207       // not x87, SSE, AVX or PKRU
#define AMX 0x60000
#define BY_XSAVE 1              // fiberthread_save_by; see SaveBy in inject.cpp

        .macro  SAVE reg, offset
        push    %\reg
        .cfi_offset \reg, \offset
        .endm
        .macro  LOAD reg
        pop     %\reg
        .cfi_restore \reg
        .endm

        .text
        .globl  fiberthread_trampoline, fiberthread_trampoline_end
        .hidden fiberthread_trampoline, fiberthread_trampoline_end
        .type   fiberthread_trampoline, @function
        .p2align 6
        .cfi_startproc simple
        .cfi_signal_frame
        .cfi_def_cfa rsp, 144
        .cfi_offset rip, -136
        nop                                     // for unwinders that look up the byte before
fiberthread_trampoline:
        pushfq
        .cfi_def_cfa_offset 152
        cld
        push    %rbp
        .cfi_def_cfa_offset 160
        .cfi_offset rbp, -160
        mov     %rsp, %rbp
        .cfi_def_cfa rbp, 160
        SAVE    rax, -168
        SAVE    rcx, -176
        SAVE    rdx, -184
        SAVE    rbx, -192
        SAVE    rsi, -200
        SAVE    rdi, -208
        SAVE    r8, -216
        SAVE    r9, -224
        SAVE    r10, -232
        SAVE    r11, -240
        SAVE    r12, -248
        SAVE    r13, -256
        SAVE    r14, -264
        SAVE    r15, -272

        mov     fiberthread_xsave_mask(%rip), %eax
        mov     %eax, %ebx
        mov     8 + fiberthread_xsave_sizes(%rip), %ecx
        mov     fiberthread_save_by(%rip), %r12d
        cmp     $BY_XSAVE, %r12d
        jae     1f
        mov     $1, %ecx
        xgetbv                                  // XINUSE: which components differ from their initial state
        and     fiberthread_xsave_mask(%rip), %eax
        or      $X87_SSE, %eax                  // mxcsr does not count as in use
        mov     %eax, %ebx
        mov     fiberthread_xsave_sizes(%rip), %ecx
        test    $BEYOND_AVX, %eax
        je      1f
        mov     4 + fiberthread_xsave_sizes(%rip), %ecx
        test    $AMX, %eax
        je      1f
        mov     8 + fiberthread_xsave_sizes(%rip), %ecx
1:      and     $-64, %rsp
        sub     %rcx, %rsp
        xor     %edx, %edx
        .irp    word, 0, 8, 16, 24, 32, 40, 48, 56
        mov     %rdx, XSAVE_HEADER + \word(%rsp)
        .endr
        cmp     $BY_XSAVE, %r12d
        je      5f
        ja      6f
        xsavec64 (%rsp)

        // What the ABI promises to a function that is called.
7:      testb   $X87, XSAVE_HEADER(%rsp)
        je      2f
8:      fninit                                  // empty, and no exception pending
        fldcw   (%rsp)
2:      test    $AVX_ZMM, %ebx
        je      3f
        vzeroupper
3:      test    $AMX, %ebx
        je      4f
        .byte   0xc4, 0xe2, 0x78, 0x49, 0xc0    // tilerelease: the next fiber must not carry 8 kB about
        .cfi_remember_state
4:      call    *FUNCTION(%rbp)

        cmp     $BY_XSAVE, %r12d
        ja      9f
        mov     fiberthread_xsave_mask(%rip), %eax
        xor     %edx, %edx
        xrstor64 (%rsp)                         // components that were not saved become initial again
10:     lea     -GPRS(%rbp), %rsp
        LOAD    r15
        LOAD    r14
        LOAD    r13
        LOAD    r12
        LOAD    r11
        LOAD    r10
        LOAD    r9
        LOAD    r8
        LOAD    rdi
        LOAD    rsi
        LOAD    rbx
        LOAD    rdx
        LOAD    rcx
        LOAD    rax
        LOAD    rbp
        .cfi_def_cfa rsp, 152
        popfq
        .cfi_def_cfa_offset 144
        lea     8(%rsp), %rsp                   // passes over the function's word, and changes no flag
        .cfi_def_cfa_offset 136
        ret     $128                            // pops rip and the red zone

        .cfi_restore_state
5:      xsave64 (%rsp)
        jmp     7b
6:      fxsave64 (%rsp)
        jmp     8b
9:      fxrstor64 (%rsp)
        jmp     10b
        .cfi_endproc
fiberthread_trampoline_end:
        .size   fiberthread_trampoline, . - fiberthread_trampoline

// Our handlers of the kernel's signals return to this code. Debuggers know it by exactly this name and these bytes, and libgcc by the
// bytes. Other unwinders have to be told that all registers are in the ucontext at rsp. The numbers are the kernel's and DWARF's.
        .macro  IN_UCONTEXT reg, offset         // at rsp + offset, which has two bytes in LEB128
        .cfi_escape 0x10, \reg, 3, 0x77, (\offset & 0x7f) | 0x80, \offset >> 7
        .endm
        .globl  __restore_rt
        .hidden __restore_rt
        .type   __restore_rt, @function
        .p2align 4
        .cfi_startproc simple
        .cfi_signal_frame
        .cfi_escape 0x0f, 4, 0x77, (160 & 0x7f) | 0x80, 160 >> 7, 0x06  // CFA: the interrupted rsp
        IN_UCONTEXT 8, 40                       // r8
        IN_UCONTEXT 9, 48
        IN_UCONTEXT 10, 56
        IN_UCONTEXT 11, 64
        IN_UCONTEXT 12, 72
        IN_UCONTEXT 13, 80
        IN_UCONTEXT 14, 88
        IN_UCONTEXT 15, 96
        IN_UCONTEXT 5, 104                      // rdi
        IN_UCONTEXT 4, 112                      // rsi
        IN_UCONTEXT 6, 120                      // rbp
        IN_UCONTEXT 3, 128                      // rbx
        IN_UCONTEXT 1, 136                      // rdx
        IN_UCONTEXT 0, 144                      // rax
        IN_UCONTEXT 2, 152                      // rcx
        IN_UCONTEXT 7, 160                      // rsp
        IN_UCONTEXT 16, 168                     // rip
        nop                                     // for unwinders that look up the byte before
__restore_rt:
        mov     $15, %rax                       // rt_sigreturn
        syscall
        .cfi_endproc
        .size   __restore_rt, . - __restore_rt

#include "sched/arch/x86_64/asm_end.h"
