// SPDX-License-Identifier: GPL-2.0-only
#define _GNU_SOURCE
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The alignment of an arena, for huge pages. */
#define HUGE_SIZE (2UL << 20)
/* The root for 40 bits of IPA is two tables, aligned to their size. */
#define ROOT_PAGES 2
/* The physical address of the arena. */
#define ARENA_PA 0x40000000UL

struct page {
	int count;
} __attribute__((aligned(64)));

static char *arena;
static size_t arena_pages;
static struct page *pages;
static void **free_pages;
static size_t free_count;

struct counts counts;
bool forced_write_back = true;

static struct page *page_of(void *address)
{
	return &pages[((char *)address - arena) >> PAGE_SHIFT];
}

static void *take_page(void)
{
	void *page;

	if (!free_count) {
		fprintf(stderr, "the arena is too small\n");
		exit(1);
	}
	page = free_pages[--free_count];
	memset(page, 0, PAGE_SIZE);
	page_of(page)->count = 1;
	return page;
}

/* Without a cache, which no caller here uses, the page comes from the arena. */
static void *zalloc_page(void *arg)
{
	struct kvm_mmu_memory_cache *cache = arg;

	if (!cache)
		return take_page();
	COUNTED(tables, 1);
	return cache->nobjs ? cache->objects[--cache->nobjs] : NULL;
}

static void *zalloc_pages_exact(size_t size)
{
	if (size > ROOT_PAGES * PAGE_SIZE)
		return NULL;
	memset(arena, 0, size);
	return arena;
}

static void free_pages_exact(void *address, size_t size)
{
	(void)address, (void)size;
}

static void get_page(void *address)
{
	COUNTED(atomics, 1);
	__atomic_add_fetch(&page_of(address)->count, 1, __ATOMIC_RELAXED);
}

static void put_page(void *address)
{
	COUNTED(atomics, 1);
	if (__atomic_sub_fetch(&page_of(address)->count, 1, __ATOMIC_RELEASE))
		return;
	/* The pages of the root do not come from the list. */
	address = (void *)ALIGN_DOWN((unsigned long)address, PAGE_SIZE);
	if ((char *)address < arena + ROOT_PAGES * PAGE_SIZE)
		return;
	COUNTED(tables, 1);
	free_pages[free_count++] = address;
}

static int page_count(void *address)
{
	return READ_ONCE(page_of(address)->count);
}

/* A grace period costs nothing. */
static void free_unlinked_table(void *address, s8 level)
{
	kvm_pgtable_stage2_free_unlinked(&mm_ops, address, level);
}

static void *phys_to_virt(phys_addr_t pa)
{
	return arena + (pa - ARENA_PA);
}

static phys_addr_t virt_to_phys(void *address)
{
	return (phys_addr_t)((char *)address - arena) + ARENA_PA;
}

static void clean(void *address, size_t size)
{
	(void)address, (void)size;
	if (forced_write_back)
		return;
	COUNTED(lines_cleaned, size / 64);
	COUNTED(dsb, 1);
}

static void invalidate_code(void *address, size_t size)
{
	(void)address, (void)size;
}

struct kvm_pgtable_mm_ops mm_ops = {
	.zalloc_page = zalloc_page,
	.zalloc_pages_exact = zalloc_pages_exact,
	.free_pages_exact = free_pages_exact,
	.free_unlinked_table = free_unlinked_table,
	.get_page = get_page,
	.put_page = put_page,
	.page_count = page_count,
	.phys_to_virt = phys_to_virt,
	.virt_to_phys = virt_to_phys,
	.dcache_clean_inval_poc = clean,
	.icache_inval_pou = invalidate_code,
};

void cache_top_up(struct kvm_mmu_memory_cache *cache, int least)
{
	if (cache->nobjs >= least)
		return;
	while (cache->nobjs < cache->capacity)
		cache->objects[cache->nobjs++] = take_page();
}

void cache_empty(struct kvm_mmu_memory_cache *cache)
{
	while (cache->nobjs)
		put_page(cache->objects[--cache->nobjs]);
}

/* Maps and touches whole huge pages. */
static void *map(size_t size)
{
	char *at;

	size = ALIGN_DOWN(size + HUGE_SIZE - 1, HUGE_SIZE);
	at = mmap(NULL, size + HUGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("no memory for tables");
		exit(1);
	}
	at = (char *)ALIGN_DOWN((unsigned long)at + HUGE_SIZE - 1, HUGE_SIZE);
	madvise(at, size, MADV_HUGEPAGE);
	memset(at, 0, size);
	return at;
}

void memory_init(size_t table_pages)
{
	arena_pages = table_pages + ROOT_PAGES;
	arena = map(arena_pages * PAGE_SIZE);
	pages = map(arena_pages * sizeof(*pages));
	free_pages = map(arena_pages * sizeof(*free_pages));
	memory_reset();
}

void memory_reset(void)
{
	free_count = 0;
	for (size_t page = arena_pages; page-- > ROOT_PAGES;)
		free_pages[free_count++] = arena + page * PAGE_SIZE;
	for (size_t page = 0; page < arena_pages; page++)
		pages[page].count = page < ROOT_PAGES;
}

size_t memory_used(void)
{
	return arena_pages - ROOT_PAGES - free_count;
}

u64 memory_huge(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[128];
	u64 kib = 0;

	while (file && fgets(line, sizeof(line), file))
		sscanf(line, "AnonHugePages: %llu", &kib);
	if (file)
		fclose(file);
	return kib << 10;
}

void warned(const char *file, int line)
{
	fprintf(stderr, "the page-table code warns at %s:%d\n", file, line);
	exit(1);
}
