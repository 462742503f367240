/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stand-in: the parts of a kernel that the page-table code needs, on one CPU in user space.
 *
 * The CPU has FEAT_S2FWB and FEAT_TLBIRANGE and no LPA2. These are compile-time constants here, as they are patched
 * into a kernel's code. TLB invalidations, barriers and cache operations cost nothing; with COUNT they are counted.
 * Lockdep checks and RCU sections cost nothing either.
 */
#ifndef TWOFOLD_KVM_HOST_H
#define TWOFOLD_KVM_HOST_H

#include <errno.h>

#include <linux/bits.h>
#include <linux/pgtable.h>
#include <linux/types.h>

/* The events that a kernel's own code would cause; only in the counting build. */
struct counts {
	u64 tlbi, dsb, lines_cleaned, tables, atomics;
};
extern struct counts counts;

#ifdef COUNT
#define COUNTED(what, by) ((void)(counts.what += (by)))
#else
#define COUNTED(what, by) ((void)0)
#endif

/* Compiler and memory. */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() __asm__ volatile("" ::: "memory")
#define READ_ONCE(place) (*(const volatile __typeof__(place) *)&(place))
#define WRITE_ONCE(place, value) (*(volatile __typeof__(place) *)&(place) = (value))
#define smp_store_release(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
#define cmpxchg(place, old, new) (COUNTED(atomics, 1), __sync_val_compare_and_swap(place, old, new))

/* Arithmetic. */
#define ALIGN_DOWN(x, to) ((x) & ~((__typeof__(x))(to) - 1))
#define IS_ALIGNED(x, to) (((x) & ((__typeof__(x))(to) - 1)) == 0)
#define PAGE_ALIGN(x) ALIGN_DOWN((x) + PAGE_SIZE - 1, PAGE_SIZE)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
#define IS_ENABLED(option) 0

/* Errors in pointers use the last page of addresses. */
#define ERR_PTR(error) ((void *)(long)(error))
#define PTR_ERR(pointer) ((long)(pointer))
#define IS_ERR(pointer) ((unsigned long)(pointer) >= -4095UL)

/* A warning means a bug in our stand-ins, so it ends the process. */
void warned(const char *file, int line) __attribute__((cold, noreturn));
#define WARN_ON(x) ({ bool bad = !!(x); if (unlikely(bad)) warned(__FILE__, __LINE__); unlikely(bad); })
#define WARN_ON_ONCE(x) WARN_ON(x)

/* RCU without preemption is only a compiler barrier. */
#define __rcu
#define rcu_read_lock() barrier()
#define rcu_read_unlock() barrier()
#define rcu_read_lock_held() true
#define rcu_dereference_check(pointer, condition) READ_ONCE(pointer)

/* The CPU. */
enum { ARM64_KVM_HVHE, ARM64_HAS_STAGE2_FWB, ARM64_WORKAROUND_AMPERE_AC03_CPU_38 };
#define cpus_have_final_cap(cap) ((cap) == ARM64_HAS_STAGE2_FWB)
#define system_supports_lpa2() false
#define system_supports_tlb_range() true
#define system_supports_bti_kernel() false
#define get_vmid_bits(mmfr1) 16
#define cpuid_feature_extract_unsigned_field(word, shift) (((word) >> (shift)) & 0xf)
#define id_aa64mmfr0_parange_to_phys_shift(range) ((range) == ID_AA64MMFR0_EL1_PARANGE_52 ? 52 : 48)

typedef u64 kvm_pfn_t;
#define __phys_to_pfn(pa) ((pa) >> PAGE_SHIFT)

/* Pages for tables, allocated before a lock is taken. */
struct kvm_mmu_memory_cache {
	int nobjs, capacity;
	void **objects;
};

struct kvm_s2_mmu {
	u64 vtcr;
	struct kvm_pgtable *pgt;
	struct kvm_mmu_memory_cache split_page_cache;
};

/* Barriers and stage-1 maintenance; only code that is not called here uses the latter. */
#define dsb(domain) COUNTED(dsb, 1)
#define isb() ((void)0)
#define TLBI_TTL_UNKNOWN 0x7fffffff
#define __TLBI_VADDR(address, asid) (address)
#define __tlbi_level(operation, operand, level) ((void)(operand), COUNTED(tlbi, 1))
#define __tlbi_sync_s1ish_hyp() COUNTED(dsb, 1)

/*
 * Stage-2 maintenance, in instructions, as Linux 6.12 does it (arch/arm64/kvm/hyp/vhe/tlb.c): a barrier, TLBIs by IPA, a
 * barrier, one TLBI of stage 1, a barrier. For a whole VMID: one TLBI between two barriers.
 */
#define kvm_call_hyp(function, ...) function(__VA_ARGS__)
#define MAX_TLBI_RANGE_PAGES (32UL << 16)

static inline void by_ipa(u64 tlbis)
{
	COUNTED(tlbi, tlbis + 1);
	COUNTED(dsb, 3);
	(void)tlbis;
}

/* The number of operands for `pages`: at each scale 1 to 32 times 2^(5 * scale + 1) pages, and an odd page alone. */
static inline u64 range_operands(u64 pages)
{
	u64 operands = pages & 1;

	for (int scale = 0; scale < 4; scale++) {
		u64 units = pages >> (5 * scale + 1);

		operands += (scale == 3 ? units : units & 31) != 0;
	}
	return operands;
}

static inline void __kvm_tlb_flush_vmid(struct kvm_s2_mmu *mmu)
{
	(void)mmu;
	COUNTED(tlbi, 1);
	COUNTED(dsb, 2);
}

static inline void __kvm_tlb_flush_vmid_ipa(struct kvm_s2_mmu *mmu, phys_addr_t ipa, int level)
{
	(void)mmu, (void)ipa, (void)level;
	by_ipa(1);
}

static inline void __kvm_tlb_flush_vmid_ipa_nsh(struct kvm_s2_mmu *mmu, phys_addr_t ipa, int level)
{
	(void)mmu, (void)ipa, (void)level;
	by_ipa(1);
}

static inline void __kvm_tlb_flush_vmid_range(struct kvm_s2_mmu *mmu, phys_addr_t start, u64 pages)
{
	(void)mmu, (void)start, (void)pages;
#ifdef COUNT
	by_ipa(range_operands(pages));
#endif
}

/* Defined in the page-table code, but declared in a kernel header. */
void kvm_tlb_flush_vmid_range(struct kvm_s2_mmu *mmu, phys_addr_t addr, size_t size);

#endif
