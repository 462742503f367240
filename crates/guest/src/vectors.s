// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// The vector table. No exception returns, so no register is saved.
//
// TPIDR_EL1 is not 0 while a report is impossible: before the MMU is on, and from the first report on. An exception
// then resets, so that nothing loops even if the state is broken.

    .section .text.vectors, "ax"
    .balign 2048
    .global vectors
vectors:
    .irp    index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .balign 128
    mov     x0, #\index
    b       taken
    .endr

    .balign 128
    .global taken
taken:
    mrs     x1, tpidr_el1
    cbnz    x1, reset
    mov     x1, #1
    msr     tpidr_el1, x1
    isb
    // The stack pointer may be the cause: set it anew.
    adrp    x1, stack_end
    add     x1, x1, :lo12:stack_end
    mov     sp, x1
    mov     x29, xzr
    mov     x30, xzr
    b       {report}
