/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory for tables, as the page-table code is given it: an arena, a reference count a page, a list of free pages.
 *
 * The list is last in, first out, and starts anew for each operation, so that runs are alike. Pages are handed out
 * zeroed. A count has a cache line to itself, as a kernel's `struct page` has.
 */
#ifndef TWOFOLD_MEMORY_H
#define TWOFOLD_MEMORY_H

#include <linux/bitfield.h>
#include <linux/kvm_host.h>
#include <asm/kvm_pgtable.h>

extern struct kvm_pgtable_mm_ops mm_ops;
/* Whether stage 2 forces write-back, so that nothing has to be cleaned. */
extern bool forced_write_back;

/* Maps an arena of `pages` table pages and touches all of it. */
void memory_init(size_t pages);
/* All pages are free again, in ascending order. */
void memory_reset(void);
/* How many pages are not free. */
size_t memory_used(void);
/* Fills the cache to its capacity where it holds fewer than `least`: what a fault does before it takes the lock. */
void cache_top_up(struct kvm_mmu_memory_cache *cache, int least);
/* Gives the pages in the cache back. */
void cache_empty(struct kvm_mmu_memory_cache *cache);
/* Bytes of the arena in huge pages. */
u64 memory_huge(void);

#endif
