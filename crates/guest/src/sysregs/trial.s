// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// sysregs_trial(code, values, counts) executes the read at `code` once and the write at `code + 8` with 15 values in
// x0. A RET follows each. It adds to counts: executed, undefined, trapped to EL1, aborted.
//
// Meanwhile the MMU is off and no memory is read or written, so no value of a translation register, and no endianness,
// can do harm: all state that must survive is in registers. An exception with any other cause switches the vCPU off.
// So does a value that the read gave and that is another owner's: it is stored before, while no value was written yet.

    .macro  restore
    msr     daifset, #0xf
    msr     spsel, #1
    mrs     x18, sctlr_el1
    cmp     x18, x20
    b.eq    8f
    msr     sctlr_el1, x20
    isb
8:  mrs     x18, vbar_el1
    cmp     x18, x19
    b.eq    9f
    msr     vbar_el1, x19
    isb
9:
    .endm

    // Whether half of x0 is the pattern in w18.
    .macro  find
    cmp     w18, w0
    b.eq    trial_leak
    lsr     x29, x0, #32
    cmp     w18, w29
    b.eq    trial_leak
    .endm

    .section .text.sysregs, "ax"
    .global sysregs_trial
sysregs_trial:
    stp     x29, x30, [sp, #-112]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    stp     x2, x18, [sp, #96]

    mrs     x24, vbar_el1
    mrs     x25, sctlr_el1
    mrs     x26, tcr_el1
    mrs     x27, ttbr0_el1
    mrs     x28, mair_el1
    adrp    x19, trial_vectors
    add     x19, x19, :lo12:trial_vectors
    ldr     x20, ={sctlr_off}
    mov     x21, xzr                    // undefined
    mov     x22, xzr                    // trapped to EL1
    mov     x23, xzr                    // aborted
    mov     x16, x0
    add     x17, x0, #8
    mov     x18, x1
    ldp     x1, x2, [x18]
    ldp     x3, x4, [x18, #16]
    ldp     x5, x6, [x18, #32]
    ldp     x7, x8, [x18, #48]
    ldp     x9, x10, [x18, #64]
    ldp     x11, x12, [x18, #80]
    ldp     x13, x14, [x18, #96]
    ldr     x15, [x18, #112]

    msr     daifset, #0xf
    msr     vbar_el1, x19
    msr     sctlr_el1, x20
    isb

    mov     x0, xzr
    blr     x16
    restore
    movz    w18, #{guest_low}
    movk    w18, #{guest_high}, lsl #16
    find
    movz    w18, #{machine_low}
    movk    w18, #{machine_high}, lsl #16
    find
    .irp    index, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    mov     x0, x\index
    blr     x17
    restore
    .endr

    msr     tcr_el1, x26
    msr     ttbr0_el1, x27
    msr     mair_el1, x28
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    msr     sctlr_el1, x25
    msr     vbar_el1, x24
    isb
    msr     tpidr_el1, xzr              // an exception from here on is reported

    ldp     x2, x18, [sp, #96]
    ldp     x0, x1, [x2]
    add     x0, x0, #16
    add     x1, x1, x21
    stp     x0, x1, [x2]
    ldp     x0, x1, [x2, #16]
    add     x0, x0, x22
    add     x1, x1, x23
    stp     x0, x1, [x2, #16]
    ldp     x27, x28, [sp, #80]
    ldp     x25, x26, [sp, #64]
    ldp     x23, x24, [sp, #48]
    ldp     x21, x22, [sp, #32]
    ldp     x19, x20, [sp, #16]
    ldp     x29, x30, [sp], #112
    ret

// x18 and x29 are free here.
    .balign 2048
trial_vectors:
    .irp    index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    .balign 128
    .if     (\index == 0) || (\index == 4)
    b       trial_exception
    .else
    b       trial_killed
    .endif
    .endr
    .balign 128

trial_exception:
    mrs     x18, esr_el1
    lsr     x18, x18, #26
    cbz     x18, 1f                     // UNDEFINED
    cmp     x18, #0x25                  // a data abort: an operation by address
    b.eq    3f
    cmp     x18, #0x18                  // MSR, MRS or a system instruction
    b.eq    2f
    cmp     x18, #0x07                  // FP
    b.eq    2f
    cmp     x18, #0x19                  // SVE
    b.eq    2f
    cmp     x18, #0x1d                  // SME
    b.eq    2f
    b       trial_killed
1:  add     x21, x21, #1
    b       4f
2:  add     x22, x22, #1
    b       4f
3:  add     x23, x23, #1
4:  mrs     x18, elr_el1
    add     x18, x18, #4
    msr     elr_el1, x18
    eret

trial_leak:
    adrp    x18, {leak}
    add     x18, x18, :lo12:{leak}
    str     x0, [x18]
    dsb     sy

trial_killed:
    mov     w0, #{cpu_off_low}
    movk    w0, #{cpu_off_high}, lsl #16
    hvc     #0
5:  wfi
    b       5b

    .ltorg
