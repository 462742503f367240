// SPDX-License-Identifier: Apache-2.0 OR MIT
// From the boot loader's jump to the first line of Rust. boot.rs says which state holds when.

// Puts the run-time address of \symbol into \register.
.macro address register, symbol
    adrp    \register, \symbol
    add     \register, \register, :lo12:\symbol
.endm

// The set-up of every CPU before it uses its stack: x19 holds its `Cpu`.
.macro set_up_cpu
    msr     tpidr_el2, x19
    ldr     x0, ={stack_below_cpu}
    sub     x0, x19, x0
    mov     sp, x0
    address x0, exception_vectors
    msr     vbar_el2, x0
    isb
    mov     x29, xzr                    // ends the chain of frame records
    mov     x30, xzr
.endm

// The header of an arm64 "Image" (Linux, Documentation/arch/arm64/booting.rst), which is also that of an EFI application
// (PE/COFF; UEFI 2.10, 2.1.1). The first instruction has the bytes that EFI wants, "MZ", and changes only the flags.
.section .head, "ax"
.global image_header
image_header:
    ccmp    x18, #0, #0xd, pl
    b       boot_entry
    .quad   0                           // text_offset: at the start of a 2 MiB unit
    .quad   image_size                  // .bss and stacks included
    .quad   0xa                         // little-endian, 4 KiB pages, anywhere in memory
    .quad   0, 0, 0
    .ascii  "ARM\x64"
    .long   pe_header - image_header

.balign 8
pe_header:
    .ascii  "PE\0\0"
    .short  0xaa64                      // arm64
    .short  2                           // sections
    .long   0, 0, 0
    .short  section_table - optional_header
    .short  0x206                       // an executable; without line numbers and debugging data
optional_header:
    .short  0x20b                       // PE32+
    .byte   0, 0
    .long   pe_text_size
    .long   pe_data_file_size
    .long   0
    .long   pe_entry
    .long   pe_text
    .quad   0                           // the address that it is linked at
    .long   4096, 512                   // alignment of sections in memory, and in the file
    .short  0, 0, 0, 0, 0, 0
    .long   0
    .long   image_size
    .long   pe_text                     // size of the headers
    .long   0
    .short  10                          // an EFI application
    .short  0x100                       // its data need not be executable
    .quad   0, 0, 0, 0
    .long   0
    .long   6                           // directories, all empty: boot.s has its own relocations
    .quad   0, 0, 0, 0, 0, 0
section_table:
    .ascii  ".text\0\0\0"
    .long   pe_text_size, pe_text, pe_text_size, pe_text
    .long   0, 0, 0
    .long   0x60000020                  // code: read, execute
    .ascii  ".data\0\0\0"              // constants too: they are relocated
    .long   pe_data_size, pe_data, pe_data_file_size, pe_data
    .long   0, 0, 0
    .long   0xc0000040                  // data: read, write

.section .text.boot, "ax"
boot_entry:
    mov     x19, x0                     // the DTB
    mrs     x1, CurrentEL
    cmp     x1, #(2 << 2)
    b.ne    entered_elsewhere
    bl      known_state

    // A dirty line of a cache must not be written back over the stores below, which bypass the caches.
    adrp    x0, image_start
    adrp    x1, image_end
    bl      clean_and_invalidate

    bl      relocate

    // A first map with the gigabytes that contain the image and the DTB (at most 2 MiB long).
    address x0, boot_tables
    ldr     x1, =({boot_tables} * 4096)
0:  stp     xzr, xzr, [x0], #16
    subs    x1, x1, #16
    b.ne    0b
    address x6, boot_tables
    add     x7, x6, #4096
    adrp    x0, image_start
    bl      map_gigabyte
    adrp    x0, image_end
    sub     x0, x0, #1
    bl      map_gigabyte
    mov     x0, x19
    bl      map_gigabyte
    ldr     x0, =((2 << 20) - 1)
    add     x0, x0, x19
    bl      map_gigabyte

    // Lines that a cache has read meanwhile are older than these stores.
    adrp    x0, image_start
    adrp    x1, image_end
    bl      clean_and_invalidate

    address x0, boot_tables
    ldr     x1, ={sctlr_boot}
    bl      {enable_mmu}

    address x0, bss_start
    address x1, bss_end
0:  cmp     x0, x1
    b.hs    1f
    stp     xzr, xzr, [x0], #16
    stp     xzr, xzr, [x0], #16
    stp     xzr, xzr, [x0], #16
    stp     xzr, xzr, [x0], #16
    b       0b

1:  mov     x20, x19
    address x19, {areas}
    ldr     x0, ={cpu_in_area}
    add     x19, x19, x0
    set_up_cpu
    mov     x0, x20
    b       {start}

// The entry for EFI, at EL2 with the firmware's MMU on: x0 is the image's handle, x1 the system table. `efi` ends the boot
// services. After that this is a boot loader, which calls the entry above as that expects it. A refusal returns.
.global efi_entry
efi_entry:
    stp     x29, x30, [sp, #-16]!
    mov     x29, sp
    mov     x8, x0
    mov     x9, x1
    bl      relocate                    // its effect is the same if it is repeated
    mov     x0, x8
    mov     x1, x9
    bl      {efi}                       // x0: why not; x1: the DTB
    cbz     x0, 0f
    ldp     x29, x30, [sp], #16
    ret
0:  msr     daifset, #0xf
    mov     x19, x1
    // What the firmware has loaded, and `efi` has written, is in the caches.
    adrp    x0, image_start
    adrp    x1, image_end
    bl      clean_and_invalidate
    mrs     x0, sctlr_el2
    mov     x1, #(1 << 12 | 1 << 2 | 1 << 0) // I, C, M
    bic     x0, x0, x1
    msr     sctlr_el2, x0
    isb
    tlbi    alle2
    ic      iallu
    dsb     nsh
    isb
    mov     x0, x19
    b       boot_entry

// The entry for PSCI CPU_ON: x0 is the CPU's `Cpu`. Before its MMU is on, a CPU reads only constants in .text, which is
// clean to the point of coherency.
.global secondary_entry
secondary_entry:
    mov     x19, x0
    bl      known_state
    address x0, {tables}
    ldr     x1, ={sctlr}
    bl      {enable_mmu}
    set_up_cpu
    mov     x0, x19
    b       {start_secondary}

// Jumps to the function at x0, which never returns, with x1 as the stack pointer.
.global enter_with_stack
enter_with_stack:
    mov     sp, x1
    mov     x29, xzr                    // ends the chain of frame records
    mov     x30, xzr
    br      x0

// The image is linked at 0, so the slide is its address.
relocate:
    adrp    x0, image_start
    address x1, rela_start
    address x2, rela_end
0:  cmp     x1, x2
    b.hs    1f
    ldp     x3, x4, [x1], #16           // r_offset, r_info
    ldr     x5, [x1], #8                // r_addend
    cmp     x4, #0x403                  // R_AARCH64_RELATIVE is the only type in a static PIE
    b.ne    park
    add     x5, x5, x0
    str     x5, [x0, x3]
    b       0b
1:  ret

// Interrupts masked, SP_EL2, and EL2's own translation regime (HCR_EL2.E2H=0) over an AArch64 EL1.
known_state:
    msr     daifset, #0xf
    msr     spsel, #1
    mov     x1, #(1 << 31)              // HCR_EL2.RW
    msr     hcr_el2, x1
    isb
    // Clear the registers that would change the meaning of EL2's tables and registers.
    mrs     x1, s3_0_c0_c7_3            // ID_AA64MMFR3_EL1; 0 on a CPU that is older
    tst     x1, #(0xf << 0)             // FEAT_TCR2
    b.eq    0f
    msr     s3_4_c2_c0_3, xzr           // TCR2_EL2
0:  tst     x1, #(0xf << 4)             // FEAT_SCTLR2
    b.eq    0f
    msr     s3_4_c1_c0_3, xzr           // SCTLR2_EL2
0:  mrs     x1, id_aa64pfr1_el1
    tst     x1, #(0xf << 44)            // FEAT_GCS
    b.eq    0f
    msr     s3_4_c2_c5_0, xzr           // GCSCR_EL2
0:  isb
    ret

// Cleans and invalidates [x0, x1) to the point of coherency.
clean_and_invalidate:
    dsb     sy                          // stores with the MMU off are not ordered with cache maintenance
    mrs     x2, ctr_el0
    ubfx    x2, x2, #16, #4             // DminLine: log2 of the words in the smallest line
    mov     x3, #4
    lsl     x3, x3, x2
0:  dc      civac, x0
    add     x0, x0, x3
    cmp     x0, x1
    b.lo    0b
    dsb     sy
    ret

// Maps the gigabyte around x0 in the level-0 table x6; x7 is the next free table.
map_gigabyte:
    ubfx    x1, x0, #39, #9
    ldr     x2, [x6, x1, lsl #3]
    cbnz    x2, 0f
    orr     x2, x7, #3
    str     x2, [x6, x1, lsl #3]
    add     x7, x7, #4096
0:  bic     x2, x2, #3
    ubfx    x1, x0, #30, #9
    and     x0, x0, #0xffffc0000000
    ldr     x3, ={boot_block}
    orr     x0, x0, x3
    str     x0, [x2, x1, lsl #3]
    ret

// Entered at EL1 or EL3, the image reports that and no more. x19 is the DTB. The MMU stays off, and an exception parks.
entered_elsewhere:
    msr     daifset, #0xf
    msr     spsel, #1
    adr     x2, park_vectors
    cmp     x1, #(1 << 2)
    b.eq    0f
    msr     vbar_el3, x2
    b       1f
0:  msr     vbar_el1, x2
1:  isb
    adrp    x0, image_start             // as for EL2
    adrp    x1, image_end
    bl      clean_and_invalidate
    bl      relocate
    address x0, {areas}
    ldr     x1, =({cpu_in_area} - {stack_below_cpu})
    add     x0, x0, x1
    mov     sp, x0
    mov     x29, xzr
    mov     x30, xzr
    mov     x0, x19
    b       {not_el2}
park:
    wfi
    b       park

.balign 2048
park_vectors:
    .skip   0x200                       // the vector that is used: synchronous, from the current level with SP_ELx
    b       park

.section .boot_tables, "aw", @nobits
.balign 4096
boot_tables:
    .skip   {boot_tables} * 4096
