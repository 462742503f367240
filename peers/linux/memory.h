/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory for the tables of the page-table code: an arena, a reference count for each page, a list of free pages.
 *
 * The list is last in, first out, and is reset for each operation, so that all runs have the same order. Allocated
 * pages are zeroed. Each count has a cache line to itself, like a kernel's `struct page`.
 */
#ifndef TWOFOLD_MEMORY_H
#define TWOFOLD_MEMORY_H

#include <linux/bitfield.h>
#include <linux/kvm_host.h>
#include <asm/kvm_pgtable.h>

extern struct kvm_pgtable_mm_ops mm_ops;
/* Whether stage 2 forces write-back, so that no cache line needs cleaning. */
extern bool forced_write_back;

/* Maps an arena of `pages` table pages and touches every page. */
void memory_init(size_t pages);
/* Frees all pages, in ascending order. */
void memory_reset(void);
/* Returns the number of pages in use. */
size_t memory_used(void);
/* Fills the cache to its capacity if it holds fewer than `least`. A fault does this before it takes the lock. */
void cache_top_up(struct kvm_mmu_memory_cache *cache, int least);
/* Frees the pages in the cache. */
void cache_empty(struct kvm_mmu_memory_cache *cache);
/* Returns the bytes of the arena in huge pages. */
u64 memory_huge(void);

#endif
