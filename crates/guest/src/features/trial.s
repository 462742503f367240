// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// features_trial(code, x0, x1) executes the instruction at `code`, which a RET follows, with two operands in x0 and x1.
// It returns 0 or the exception class plus one, and the value in x0 afterwards. The instruction may change x0 to x7 and
// the vector registers; the stack, the MMU and the vectors stay those of the program.

    .section .text.features, "ax"
    .global features_trial
features_trial:
    stp     x29, x30, [sp, #-32]!
    mrs     x9, vbar_el1
    str     x9, [sp, #16]
    adrp    x10, features_vectors
    add     x10, x10, :lo12:features_vectors
    msr     vbar_el1, x10
    isb
    mov     x16, x0
    mov     x0, x1
    mov     x1, x2
    mov     x17, xzr
    blr     x16
    ldr     x9, [sp, #16]
    msr     vbar_el1, x9
    isb
    mov     x1, x0
    mov     x0, x17
    ldp     x29, x30, [sp], #32
    ret

// Only a synchronous exception from EL1 itself returns: nothing else happens here.
    .balign 2048
features_vectors:
    .irp    index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .balign 128
    .if     \index == 4
    mrs     x17, esr_el1
    lsr     x17, x17, #26
    add     x17, x17, #1
    mrs     x15, elr_el1
    add     x15, x15, #4
    msr     elr_el1, x15
    eret
    .else
    b       .
    .endif
    .endr
    .balign 128
