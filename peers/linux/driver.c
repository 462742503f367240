// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs operations of the page-table code, one at a time, by their names on standard input.
 *
 * A line is an operation's name. The answer is a line of JSON, in nanoseconds of CPU time per entry; in a build with
 * COUNT, in events per entry. Usage: `driver SIZE`, with the guest memory in bytes, a power of two from 1 GiB to 512
 * GiB. The tables that an operation starts from are made before the clock starts, and its result is checked after the
 * clock has stopped.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <asm/stage2_pgtable.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define IPA_BITS 40
#define GUEST_IPA 0x40000000UL
#define FRAMES_PA 0x1000000000UL
#define MIB_2 (2UL << 20)
#define GIB (1UL << 30)
/* The 64 pages of a word of KVM's dirty log. */
#define SECTION (64 * PAGE_SIZE)
/* The capacity of a vCPU's cache of pages. A fault needs one page for each level below the root. */
#define FAULT_CACHE 40

#define READ_ONLY KVM_PGTABLE_PROT_R
#define READ_WRITE KVM_PGTABLE_PROT_RW
/* The flags of a fault's walk, which may run beside others. */
#define FAULT (KVM_PGTABLE_WALK_HANDLE_FAULT | KVM_PGTABLE_WALK_SHARED)

static struct kvm_pgtable pgt;
static struct kvm_s2_mmu mmu;
static struct kvm_mmu_memory_cache fault_cache;
static u64 guest_size, guest_pages;

enum start { EMPTY, PAGES, PAGES_READ_ONLY, PAGES_OLD, PAGES_NOT_FORCED, BLOCKS_2M, BLOCKS_1G };

struct operation {
	const char *name;
	enum start start;
	void (*run)(void);
	/* The bytes of one counted unit: 4 KiB, or the size of a block. */
	u64 unit;
	/* The expected result: leaves of this level, writable or not, young or not. */
	s8 level;
	bool writable, young;
};

#define NOTHING 0

static void fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

static void must(bool good)
{
	if (unlikely(!good))
		fail("the page-table code refused");
}

/* The same order as in our bench, which no prefetcher predicts: a bijection of [0, guest_pages), a power of two. */
static inline u64 scattered(u64 page)
{
	u64 mask = guest_pages - 1;
	int half = __builtin_ctzll(guest_pages) / 2;

	page = (page * 0x9e3779b97f4a7c15UL) & mask;
	page ^= page >> half;
	page = (page * 0xbf58476d1ce4e5b9UL) & mask;
	page ^= page >> half;
	page = (page * 0x94d049bb133111ebUL) & mask;
	page ^= page >> half;
	return page;
}

static void flush(void)
{
	kvm_tlb_flush_vmid_range(&mmu, GUEST_IPA, guest_size);
}

static inline void map_one(u64 page)
{
	u64 offset = page << PAGE_SHIFT;

	cache_top_up(&fault_cache, kvm_mmu_cache_min_pages(&mmu));
	must(!kvm_pgtable_stage2_map(&pgt, GUEST_IPA + offset, PAGE_SIZE, FRAMES_PA + offset, READ_WRITE,
				     &fault_cache, FAULT));
}

static void map_pages(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		map_one(page);
}

static void map_pages_scattered(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		map_one(scattered(page));
}

/* The number of tables that map the guest's memory by pages. */
static int all_tables(void)
{
	return guest_size / MIB_2 + guest_size / GIB;
}

static void map_all(u64 step, enum kvm_pgtable_prot prot)
{
	cache_top_up(&mmu.split_page_cache, all_tables());
	for (u64 offset = 0; offset < guest_size; offset += step)
		must(!kvm_pgtable_stage2_map(&pgt, GUEST_IPA + offset, step, FRAMES_PA + offset, prot,
					     &mmu.split_page_cache, 0));
}

static void map_range(void)
{
	map_all(guest_size, READ_WRITE);
}

/*
 * Splits in one call. The time includes allocating all pages before. KVM splits in chunks of a size that its user
 * chooses, and tops the cache up between them; chunks of 1 GiB take nearly as long. The cache never runs dry: with too
 * few pages for a 1 GiB block, a call would split it one level at a time, which is another operation.
 */
static void split(void)
{
	cache_top_up(&mmu.split_page_cache, all_tables());
	must(!kvm_pgtable_stage2_split(&pgt, GUEST_IPA, guest_size, &mmu.split_page_cache));
}

static void split_again(void)
{
	must(!kvm_pgtable_stage2_split(&pgt, GUEST_IPA, guest_size, &mmu.split_page_cache));
}

static void split_again_sections(void)
{
	for (u64 offset = 0; offset < guest_size; offset += SECTION)
		must(!kvm_pgtable_stage2_split(&pgt, GUEST_IPA + offset, SECTION, &mmu.split_page_cache));
}

static void protect(void)
{
	must(!kvm_pgtable_stage2_wrprotect(&pgt, GUEST_IPA, guest_size));
	flush();
}

static void protect_sections(void)
{
	for (u64 offset = 0; offset < guest_size; offset += SECTION)
		must(!kvm_pgtable_stage2_wrprotect(&pgt, GUEST_IPA + offset, SECTION));
	flush();
}

static void protect_split_sections(void)
{
	for (u64 offset = 0; offset < guest_size; offset += SECTION) {
		must(!kvm_pgtable_stage2_wrprotect(&pgt, GUEST_IPA + offset, SECTION));
		must(!kvm_pgtable_stage2_split(&pgt, GUEST_IPA + offset, SECTION, &mmu.split_page_cache));
	}
	flush();
}

static void relax(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		must(!kvm_pgtable_stage2_relax_perms(&pgt, GUEST_IPA + (page << PAGE_SHIFT), READ_WRITE));
}

static void relax_scattered(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		must(!kvm_pgtable_stage2_relax_perms(&pgt, GUEST_IPA + (scattered(page) << PAGE_SHIFT), READ_WRITE));
}

static void young(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		must(kvm_pte_valid(kvm_pgtable_stage2_mkyoung(&pgt, GUEST_IPA + (page << PAGE_SHIFT))));
}

static void age(void)
{
	must(kvm_pgtable_stage2_test_clear_young(&pgt, GUEST_IPA, guest_size, true));
}

static void lookup(void)
{
	for (u64 page = 0; page < guest_pages; page++) {
		kvm_pte_t pte;
		s8 level;

		must(!kvm_pgtable_get_leaf(&pgt, GUEST_IPA + (page << PAGE_SHIFT), &pte, &level));
		must(kvm_pte_valid(pte) && level == 3);
	}
}

static void coalesce(u64 step)
{
	for (u64 offset = 0; offset < guest_size; offset += step) {
		cache_top_up(&fault_cache, kvm_mmu_cache_min_pages(&mmu));
		must(!kvm_pgtable_stage2_map(&pgt, GUEST_IPA + offset, step, FRAMES_PA + offset, READ_WRITE,
					     &fault_cache, FAULT));
	}
}

static void coalesce_2m(void)
{
	coalesce(MIB_2);
}

static void coalesce_1g(void)
{
	coalesce(GIB);
}

static void unmap(void)
{
	for (u64 offset = 0; offset < guest_size; offset += GIB)
		must(!kvm_pgtable_stage2_unmap(&pgt, GUEST_IPA + offset, GIB));
}

static void unmap_pages(void)
{
	for (u64 page = 0; page < guest_pages; page++)
		must(!kvm_pgtable_stage2_unmap(&pgt, GUEST_IPA + (page << PAGE_SHIFT), PAGE_SIZE));
}

static void destroy(void)
{
	kvm_pgtable_stage2_destroy(&pgt);
}

static const struct operation operations[] = {
	/* name, start, run, unit; the result: level, writable, young */
	{ "map_pages", EMPTY, map_pages, PAGE_SIZE, 3, true, true },
	{ "map_pages_scattered", EMPTY, map_pages_scattered, PAGE_SIZE, 3, true, true },
	{ "map_range", EMPTY, map_range, PAGE_SIZE, 3, true, true },
	{ "split_2m", BLOCKS_2M, split, PAGE_SIZE, 3, true, true },
	{ "split_1g", BLOCKS_1G, split, PAGE_SIZE, 3, true, true },
	{ "split_again", PAGES, split_again, PAGE_SIZE, 3, true, true },
	{ "split_again_sections", PAGES, split_again_sections, PAGE_SIZE, 3, true, true },
	{ "protect", PAGES, protect, PAGE_SIZE, 3, false, true },
	{ "protect_sections", PAGES, protect_sections, PAGE_SIZE, 3, false, true },
	{ "protect_again", PAGES_READ_ONLY, protect, PAGE_SIZE, 3, false, true },
	{ "protect_split_sections", PAGES, protect_split_sections, PAGE_SIZE, 3, false, true },
	{ "relax", PAGES_READ_ONLY, relax, PAGE_SIZE, 3, true, true },
	{ "relax_scattered", PAGES_READ_ONLY, relax_scattered, PAGE_SIZE, 3, true, true },
	{ "young", PAGES_OLD, young, PAGE_SIZE, 3, true, true },
	{ "age", PAGES, age, PAGE_SIZE, 3, true, false },
	{ "lookup", PAGES, lookup, PAGE_SIZE, 3, true, true },
	{ "coalesce_2m", PAGES, coalesce_2m, MIB_2, 2, true, true },
	{ "coalesce_1g", PAGES, coalesce_1g, GIB, 1, true, true },
	{ "unmap", PAGES, unmap, PAGE_SIZE, NOTHING, false, false },
	{ "unmap_pages", PAGES, unmap_pages, PAGE_SIZE, NOTHING, false, false },
	{ "destroy", PAGES, destroy, PAGE_SIZE, NOTHING, false, false },
	{ "unmap_harvest", PAGES_NOT_FORCED, unmap, PAGE_SIZE, NOTHING, false, false },
};

static bool always(u64 addr, u64 end, enum kvm_pgtable_prot prot)
{
	(void)addr, (void)end, (void)prot;
	return true;
}

/* Makes the tables that the operation starts from. */
static void make(enum start start)
{
	bool pages = start != BLOCKS_2M && start != BLOCKS_1G;
	u64 step = start == BLOCKS_2M ? MIB_2 : start == BLOCKS_1G ? GIB : guest_size;

	memory_reset();
	forced_write_back = start != PAGES_NOT_FORCED;
	memset(&pgt, 0, sizeof(pgt));
	mmu.pgt = &pgt;
	mmu.vtcr = kvm_get_vtcr(ID_AA64MMFR0_EL1_PARANGE_48, 0, IPA_BITS);
	must(!__kvm_pgtable_stage2_init(&pgt, &mmu, &mm_ops, forced_write_back ? 0 : KVM_PGTABLE_S2_NOFWB,
					pages ? always : NULL));
	if (start != EMPTY)
		map_all(step, start == PAGES_READ_ONLY ? READ_ONLY : READ_WRITE);
	if (start == PAGES_OLD)
		age();
	/* The operations themselves choose whether to map blocks. */
	if (start != EMPTY)
		pgt.force_pte_cb = NULL;
	cache_empty(&mmu.split_page_cache);
}

struct seen {
	const struct operation *operation;
	u64 bytes;
};

static int see(const struct kvm_pgtable_visit_ctx *ctx, enum kvm_pgtable_walk_flags visit)
{
	struct seen *seen = ctx->arg;
	const struct operation *operation = seen->operation;

	(void)visit;
	if (!kvm_pte_valid(ctx->old))
		return 0;
	must(ctx->level == operation->level);
	must(!!(ctx->old & KVM_PTE_LEAF_ATTR_LO_S2_S2AP_W) == operation->writable);
	must(!!(ctx->old & KVM_PTE_LEAF_ATTR_LO_S2_AF) == operation->young);
	must(kvm_pte_to_phys(ctx->old) == ctx->addr - GUEST_IPA + FRAMES_PA);
	seen->bytes += kvm_granule_size(ctx->level);
	return 0;
}

/* Checks the resulting mappings, and that unneeded pages were freed. */
static void check(const struct operation *operation)
{
	struct seen seen = { operation, 0 };
	struct kvm_pgtable_walker walker = { .cb = see, .arg = &seen, .flags = KVM_PGTABLE_WALK_LEAF };
	u64 tables[] = { 0, 0, guest_size / GIB, guest_size / GIB + guest_size / MIB_2 };

	cache_empty(&fault_cache);
	cache_empty(&mmu.split_page_cache);
	if (memory_used() != tables[operation->level])
		fail("tables were lost");
	if (!pgt.pgd)
		return;
	must(!kvm_pgtable_walk(&pgt, GUEST_IPA, guest_size, &walker));
	if (seen.bytes != (operation->level == NOTHING ? 0 : guest_size))
		fail("not everything is mapped as it should be");
}

static void answer(const struct operation *operation)
{
	double units = (double)(guest_size / operation->unit);
	const char *unit = operation->unit == PAGE_SIZE ? "ns/pte" : "ns/block";
	struct timespec from, to;

	make(operation->start);
	counts = (struct counts){ 0 };
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	operation->run();
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
#ifdef COUNT
	printf("{\"name\":\"%s\",\"unit\":\"%s\",\"tlbi\":%.9f,\"dsb\":%.9f,\"lines_cleaned\":%.9f,\"tables\":%.9f,"
	       "\"atomics\":%.9f,\"huge_page_bytes\":%llu}\n",
	       operation->name, unit, counts.tlbi / units, counts.dsb / units, counts.lines_cleaned / units,
	       counts.tables / units, counts.atomics / units, memory_huge());
#else
	printf("{\"name\":\"%s\",\"unit\":\"%s\",\"ns\":%.9f}\n", operation->name, unit,
	       ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / units);
#endif
	fflush(stdout);
	check(operation);
}

static void allocate(struct kvm_mmu_memory_cache *cache, int capacity)
{
	cache->capacity = capacity;
	cache->objects = calloc(capacity, sizeof(*cache->objects));
	if (!cache->objects)
		fail("no memory");
}

int main(int argc, char **argv)
{
	char name[64];

	guest_size = argc == 2 ? strtoull(argv[1], NULL, 0) : 0;
	if (guest_size < GIB || guest_size > 512 * GIB || guest_size & (guest_size - 1))
		fail("usage: driver SIZE; the size in bytes is a power of two from 1 GiB to 512 GiB");
	guest_pages = guest_size >> PAGE_SHIFT;
	memory_init(all_tables() + FAULT_CACHE);
	allocate(&fault_cache, FAULT_CACHE);
	allocate(&mmu.split_page_cache, all_tables());
	while (scanf("%63s", name) == 1) {
		const struct operation *operation = NULL;

		for (size_t index = 0; index < sizeof(operations) / sizeof(*operations); index++)
			if (!strcmp(operations[index].name, name))
				operation = &operations[index];
		if (!operation) {
			fprintf(stderr, "there is no operation %s\n", name);
			return 1;
		}
		answer(operation);
	}
	return 0;
}
