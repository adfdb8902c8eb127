// SPDX-License-Identifier: MIT
// Ends each file in assembly. The file includes the processor's own asm_end.h, which defines FEATURES and LANDING_PADS as the ABI does, and
// includes this. The stack need not be executable. Every place that an indirect call or jump reaches has a landing pad (endbr64, bti). If
// all of a library has them, the loader may have them enforced. Nothing else is claimed: a switch by hand leaves shadow stacks behind
// (x86-64: SHSTK, AArch64: GCS), and it keeps return addresses bare, not signed (PAC).
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4, 16, 5                        // namesz, descsz, NT_GNU_PROPERTY_TYPE_0
        .asciz  "GNU"
        .long   FEATURES, 4, LANDING_PADS, 0
        .section .note.GNU-stack, "", %progbits
