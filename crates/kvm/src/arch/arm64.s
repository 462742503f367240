// SPDX-License-Identifier: Apache-2.0 OR MIT
// The guest on arm64: a loop that reports to the host that it is done, and then does the passes of its mailbox exactly
// as `twofold_pattern::pass` defines them. It runs at EL1 at any address, with all interrupts masked, and has no stack.
//
// The host sets x19 (the mailbox) and x20 (an address at which a store is an exit).
//
// x21 accesses done     x1 the group          x6 value          x10 the next place in order
// x22 passes left       x2 groups left        x7 percent        x11 this place
// x23 the pass          x3 outer stride       x8 random order   x13 the generator's state
// x24, x25, x26         x4 places of a group  x9 places left    x0 scratch
// the generator's       x5 inner stride
    .section .rodata.twofold_kvm_guest, "a"
    .balign 2048
    .global twofold_kvm_guest
twofold_kvm_guest:
// No exception is expected. A vector stores the syndrome as an exit; the host reads the other registers, and does not
// run this vCPU again.
    .rept 16
    .balign 128
    mrs     x0, esr_el1
    str     x0, [x20, #8]
    b       .
    .endr

    .balign 2048
.Lenter:
    str     xzr, [x20]
    mov     w24, #{MULTIPLIER}
    mov     w25, #0x7fffffff
    mov     w26, #100
    mov     x21, xzr
.Lagain:
    ldr     x22, [x19, #{COUNT}]
    add     x23, x19, #{PASSES}
.Lpass:
    cbz     x22, .Lpasses_done
    ldp     x1, x2, [x23, #{START}]
    ldp     x3, x4, [x23, #{START} + 16]
    ldp     x5, x6, [x23, #{START} + 32]
    ldp     x13, x7, [x23, #{RANDOM}]
    ldr     x8, [x23, #{RANDOM} + 16]
.Lgroup:
    cbz     x2, .Lpass_done
    mov     x9, x4
    mov     x10, x1
.Lplace:
    cbz     x9, .Lgroup_done
    mov     x11, x10
    cbz     x8, 2f
    mul     x13, x13, x24
    udiv    x0, x13, x25
    msub    x13, x0, x25, x13
    udiv    x0, x13, x4
    msub    x0, x0, x4, x13
    madd    x11, x0, x5, x1
2:  mul     x13, x13, x24
    udiv    x0, x13, x25
    msub    x13, x0, x25, x13
    udiv    x0, x13, x26
    msub    x0, x0, x26, x13
    cmp     x0, x7
    b.hs    3f
    str     x6, [x11]
    b       4f
3:  ldr     x0, [x11]
4:  add     x21, x21, #1
    add     x10, x10, x5
    sub     x9, x9, #1
    tst     x21, #63
    b.ne    .Lplace
    str     x21, [x19, #{DONE}]
    ldr     x0, [x19, #{STOP}]
    cbz     x0, .Lplace
    b       .Lstopped
.Lgroup_done:
    add     x1, x1, x3
    sub     x2, x2, #1
    str     x21, [x19, #{DONE}]
    ldr     x0, [x19, #{STOP}]
    cbz     x0, .Lgroup
.Lstopped:
    str     x13, [x23, #{RANDOM}]
    str     x21, [x19, #{DONE}]
    b       .Lenter
.Lpass_done:
    str     x13, [x23, #{RANDOM}]
    add     x23, x23, #{PASS}
    sub     x22, x22, #1
    b       .Lpass
.Lpasses_done:
    str     x21, [x19, #{DONE}]
    ldr     x0, [x19, #{REPEAT}]
    cbz     x0, .Lenter
    ldr     x0, [x19, #{STOP}]
    cbz     x0, .Lagain
    b       .Lenter
    .global twofold_kvm_guest_end
twofold_kvm_guest_end:
    .text
