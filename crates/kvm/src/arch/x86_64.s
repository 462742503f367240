// SPDX-License-Identifier: Apache-2.0 OR MIT
// The guest on x86-64: a loop that reports to the host that it is done, and then does the passes of its mailbox exactly
// as `twofold_pattern::pass` defines them. It runs in long mode at ring 0 at any address, without interrupts. It has no
// stack, so an exception is a triple fault, which KVM reports.
//
// The host sets rdi (the mailbox).
//
// r14 accesses done     r11 the group         r12 the next place in order   r15 value
// r8  passes left       r9  groups left       rbx this place                rax, rcx, rdx scratch
// rsi the pass          r10 places left       r13 the generator's state
    .section .rodata.twofold_kvm_guest, "a"
    .balign 16
    .global twofold_kvm_guest
twofold_kvm_guest:
.Lenter:
    mov     edx, {PORT}
    xor     eax, eax
    out     dx, al
    xor     r14d, r14d
.Lagain:
    mov     r8, [rdi + {COUNT}]
    lea     rsi, [rdi + {PASSES}]
.Lpass:
    test    r8, r8
    jz      .Lpasses_done
    mov     r11, [rsi + {START}]
    mov     r9, [rsi + {GROUPS}]
    mov     r15, [rsi + {VALUE}]
    mov     r13, [rsi + {RANDOM}]
.Lgroup:
    test    r9, r9
    jz      .Lpass_done
    mov     r10, [rsi + {PLACES}]
    mov     r12, r11
.Lplace:
    test    r10, r10
    jz      .Lgroup_done
    mov     rbx, r12
    cmp     qword ptr [rsi + {RANDOM_ORDER}], 0
    je      2f
    imul    rax, r13, {MULTIPLIER}
    xor     edx, edx
    mov     ecx, 0x7fffffff
    div     rcx
    mov     r13, rdx
    mov     rax, rdx
    xor     edx, edx
    div     qword ptr [rsi + {PLACES}]
    imul    rdx, [rsi + {STRIDE}]
    lea     rbx, [r11 + rdx]
2:  imul    rax, r13, {MULTIPLIER}
    xor     edx, edx
    mov     ecx, 0x7fffffff
    div     rcx
    mov     r13, rdx
    mov     rax, rdx
    xor     edx, edx
    mov     ecx, 100
    div     rcx
    cmp     rdx, [rsi + {PERCENT}]
    jae     3f
    mov     [rbx], r15
    jmp     4f
3:  mov     rax, [rbx]
4:  inc     r14
    add     r12, [rsi + {STRIDE}]
    dec     r10
    test    r14d, 63
    jnz     .Lplace
    mov     [rdi + {DONE}], r14
    cmp     qword ptr [rdi + {STOP}], 0
    je      .Lplace
    jmp     .Lstopped
.Lgroup_done:
    add     r11, [rsi + {GROUP_STRIDE}]
    dec     r9
    mov     [rdi + {DONE}], r14
    cmp     qword ptr [rdi + {STOP}], 0
    je      .Lgroup
.Lstopped:
    mov     [rsi + {RANDOM}], r13
    mov     [rdi + {DONE}], r14
    jmp     .Lenter
.Lpass_done:
    mov     [rsi + {RANDOM}], r13
    add     rsi, {PASS}
    dec     r8
    jmp     .Lpass
.Lpasses_done:
    mov     [rdi + {DONE}], r14
    cmp     qword ptr [rdi + {REPEAT}], 0
    je      .Lenter
    cmp     qword ptr [rdi + {STOP}], 0
    je      .Lagain
    jmp     .Lenter
    .global twofold_kvm_guest_end
twofold_kvm_guest_end:
    .text
