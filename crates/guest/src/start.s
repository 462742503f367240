// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// From the loader to Rust: relocate, zero, turn the MMU on, call main.
//
// The code uses no memory outside the image, and Rust runs only after the MMU is on. Before that, memory behaves like a
// device: an unaligned access faults, and an exclusive access need not work.

    .section .head, "ax"

// The arm64 Image header (Linux, Documentation/arch/arm64/booting.rst).
    .global image_start
image_start:
    b       start
    .word   0
    .quad   0                           // text_offset
    .quad   image_end - image_start     // image_size, with bss and stack
    .quad   0xa                         // little-endian, 4K pages, anywhere in RAM
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .word   0

start:
    mov     x19, x0                     // the DTB, until main gets it
    msr     daifset, #0xf
    msr     spsel, #1

    // An exception in this code cannot be reported: it resets (vectors.s).
    mov     x1, #1
    msr     tpidr_el1, x1
    adrp    x1, vectors
    add     x1, x1, :lo12:vectors
    msr     vbar_el1, x1
    isb

    // Relocate. The link address is 0, so each addend lacks only the load address.
    adrp    x1, image_start
    adrp    x2, relocations_start
    add     x2, x2, :lo12:relocations_start
    adrp    x3, relocations_end
    add     x3, x3, :lo12:relocations_end
1:  cmp     x2, x3
    b.hs    2f
    ldp     x4, x5, [x2], #16           // r_offset, r_info
    ldr     x6, [x2], #8                // r_addend
    cmp     x5, #0x403                  // R_AARCH64_RELATIVE; the linker should have left no other
    b.ne    reset
    add     x6, x6, x1
    str     x6, [x1, x4]
    b       1b

2:  adrp    x2, bss_start
    add     x2, x2, :lo12:bss_start
    adrp    x3, bss_end
    add     x3, x3, :lo12:bss_end
3:  cmp     x2, x3
    b.hs    4f
    stp     xzr, xzr, [x2], #16
    b       3b

    // Map the UART, this image and the DTB; mmu.rs maps the rest after it has read the DTB.
4:  adrp    x2, {table}
    add     x2, x2, :lo12:{table}
    ldr     x3, ={device}
    str     x3, [x2]
    ldr     x3, ={normal}
    lsr     x4, x1, #30
    lsl     x5, x4, #30
    orr     x5, x5, x3
    str     x5, [x2, x4, lsl #3]
    lsr     x4, x19, #30
    cbz     x4, 5f                      // the UART is there, not a DTB: main reports that
    lsr     x5, x19, #{address_bits}
    cbnz    x5, reset
    lsl     x5, x4, #30
    orr     x5, x5, x3
    str     x5, [x2, x4, lsl #3]

    // The stores above bypassed the caches. The loader left no dirty line on the image. But clean lines may be older
    // than these stores, and would be read once the MMU is on.
5:  dsb     sy
    mrs     x3, ctr_el0
    ubfx    x3, x3, #16, #4             // DminLine
    mov     x4, #4
    lsl     x4, x4, x3
    adrp    x3, image_end
    add     x3, x3, :lo12:image_end
6:  dc      ivac, x1
    add     x1, x1, x4
    cmp     x1, x3
    b.lo    6b
    dsb     sy
    ic      iallu
    tlbi    vmalle1
    dsb     nsh
    isb

    ldr     x3, ={mair}
    msr     mair_el1, x3
    mrs     x3, id_aa64mmfr0_el1
    and     x3, x3, #0xf                // PARange
    mov     x4, #5                      // 48 bits, the most without FEAT_LPA2
    cmp     x3, x4
    csel    x3, x3, x4, lo
    ldr     x4, ={tcr}
    orr     x4, x4, x3, lsl #32         // IPS
    msr     tcr_el1, x4
    msr     ttbr0_el1, x2
    isb
    ldr     x3, ={sctlr}
    msr     sctlr_el1, x3
    isb

    // From here on exceptions can be reported. A pending SError is taken now.
    msr     tpidr_el1, xzr
    adrp    x3, stack_end
    add     x3, x3, :lo12:stack_end
    mov     sp, x3
    msr     daifclr, #4
    mov     x29, xzr
    mov     x30, xzr
    mov     x0, x19
    b       {main}

    .global reset
reset:
    ldr     w0, ={system_reset}
    hvc     #0
7:  wfi
    b       7b

    .ltorg
