// Ends each file in assembly. Its stack needs not be executable; and every place that an indirect call or jump reaches has a landing
// pad (endbr64, bti), so where all of a library has them, the loader may have them enforced. Nothing else is claimed: neither shadow
// stacks (x86-64: SHSTK, AArch64: GCS), which a switch by hand leaves behind, nor signed return addresses (PAC), as the switch keeps
// them bare.
        .section .note.gnu.property, "a"
        .p2align 3
        .long   4, 16, 5                        // namesz, descsz, NT_GNU_PROPERTY_TYPE_0
        .asciz  "GNU"
#if defined(__x86_64__)
        .long   0xc0000002, 4, 1, 0             // x86 feature_1_and: IBT
#else
        .long   0xc0000000, 4, 1, 0             // AArch64 feature_1_and: BTI
#endif
        .section .note.GNU-stack, "", %progbits
