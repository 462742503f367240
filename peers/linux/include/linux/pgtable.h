/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Stand-in: the architecture's numbers for the 4 KiB granule, from the Arm ARM (VTCR_EL2, ID_AA64MMFR0_EL1,
 * the MemAttr field of stage 2).
 */
#ifndef TWOFOLD_PGTABLE_H
#define TWOFOLD_PGTABLE_H

#include <linux/bits.h>
#include <linux/types.h>

#define CONFIG_ARM64_4K_PAGES 1

#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PTRS_PER_PTE 512

/* Each level resolves 9 bits above the page's 12; concatenated roots resolve up to 4 more. */
#define ARM64_HW_PGTABLE_LEVEL_SHIFT(level) (PAGE_SHIFT + 9 * (3 - (level)))
#define ARM64_HW_PGTABLE_LEVELS(bits) (((bits) - PAGE_SHIFT + 8) / 9)

/* VTCR_EL2: T0SZ 5 to 0, SL0 7 to 6 (its value falls with the level: 1 starts at level 1), VS 19, HA 21. */
#define VTCR_EL2_T0SZ(bits) (64 - (u64)(bits))
#define VTCR_EL2_IPA(vtcr) (64 - (u32)((vtcr) & 0x3f))
#define VTCR_EL2_SL0_MASK (3UL << 6)
#define VTCR_EL2_TGRAN_SL0_BASE 2
#define VTCR_EL2_LVLS_TO_SL0(levels) ((u64)((levels) - 2) << 6)
#define VTCR_EL2_LVLS(vtcr) ((int)(((vtcr) & VTCR_EL2_SL0_MASK) >> 6) + 2)
#define VTCR_EL2_PS_SHIFT 16
#define VTCR_EL2_VS_8BIT 0UL
#define VTCR_EL2_VS_16BIT (1UL << 19)
#define VTCR_EL2_HA (1UL << 21)
#define VTCR_EL2_DS (1UL << 32)
/* Bit 31 is RES1; walks are inner shareable and write-back. */
#define VTCR_EL2_FLAGS ((1UL << 31) | (3UL << 12) | (1UL << 10) | (1UL << 8))

#define ID_AA64MMFR0_EL1_PARANGE_SHIFT 0
#define ID_AA64MMFR0_EL1_PARANGE_48 5
#define ID_AA64MMFR0_EL1_PARANGE_52 6

/* Stage-1 memory types; only code that is not called here uses them. */
#define MT_NORMAL 0
#define MT_DEVICE_nGnRE 4

/* MemAttr[3:0], bits 5 to 2: with FEAT_S2FWB 0b110 is normal, forced to be cached; without, 0b1111. */
#define S2_MEMATTR_NORMAL(fwb) ((fwb) ? 0x6UL : 0xfUL)
#define S2_MEMATTR_NORMAL_NC(fwb) 0x5UL
#define S2_MEMATTR_DEVICE_nGnRE(fwb) 0x1UL
#define PAGE_S2_MEMATTR(type, fwb) (S2_MEMATTR_##type(fwb) << 2)

#endif
