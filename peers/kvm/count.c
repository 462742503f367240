// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts the cost of each call of a KVM selftest. The selftest is linked with it by `-Wl,--wrap=ioctl`, and is
 * unchanged.
 *
 * A count is the number of instructions that the kernel executes for the calling thread; the counter excludes user
 * space and the guest. If the kernel runs at EL2 (VHE), that is everything at EL2, from the guest's fault to the host's
 * allocator and back. A timer tick during a call is included.
 *
 * When the program ends, it prints a line for each call, in the order in which they ended (README.md has the format):
 *
 *     count: call=get slot=1 pages=16384 dirty=16384 sum=9be8e57eb2c22325 instructions=81042
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A run with more calls than this ends with an error. */
#define CALLS_MAX 65536
/* The most slots that a selftest uses. */
#define SLOTS_MAX 1024
/* The number of consecutive readings of the counter, of which the least counts. */
#define CALIBRATIONS 64

enum kind { RUN, LOG, GET, CLEAR };

static const char *const names[] = { [RUN] = "run", [LOG] = "log", [GET] = "get", [CLEAR] = "clear" };

struct call {
	enum kind kind;
	uint32_t slot;
	/* The pages of the slot, or of the cleared part. */
	uint64_t pages;
	/* The number of set bits of the bitmap, and FNV-1a of its bytes. For LOG: whether the log is on, and 0. */
	uint64_t dirty;
	uint64_t sum;
	uint64_t instructions;
};

int __real_ioctl(int fd, unsigned long request, ...);

/* On the heap, because the selftests load their whole program into the guest, which has little room. */
static struct call *calls;
static struct kvm_userspace_memory_region *slots;
static unsigned int call_count;
/* The counter of this thread, and the instructions that a reading of it takes. */
static __thread int counter = -1;
static __thread uint64_t own;

static void fail(const char *what)
{
	fprintf(stderr, "count: %s: %s\n", what, strerror(errno));
	_exit(1);
}

__attribute__((constructor)) static void make_room(void)
{
	calls = calloc(CALLS_MAX, sizeof(*calls));
	slots = calloc(SLOTS_MAX, sizeof(*slots));
	if (!calls || !slots)
		fail("no memory");
}

static uint64_t read_counter(void)
{
	uint64_t count;

	if (read(counter, &count, sizeof(count)) != sizeof(count))
		fail("the counter cannot be read (is there a PMU that counts instructions?)");
	return count;
}

static void open_counter(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.pinned = 1,
		.exclude_user = 1,
		.exclude_guest = 1,
	};
	int i;

	if (counter >= 0)
		return;
	counter = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (counter < 0)
		fail("no counter of the kernel's instructions");
	own = UINT64_MAX;
	for (i = 0; i < CALIBRATIONS; i++) {
		uint64_t first = read_counter(), spent = read_counter() - first;

		if (spent < own)
			own = spent;
	}
	/* With a stopped counter every call would appear to cost nothing. */
	if (own == 0) {
		errno = ENODATA;
		fail("the counter does not count (QEMU: only with -icount)");
	}
}

static void note(struct call call)
{
	unsigned int index = __atomic_fetch_add(&call_count, 1, __ATOMIC_RELAXED);

	if (index >= CALLS_MAX) {
		errno = E2BIG;
		fail("too many calls");
	}
	calls[index] = call;
}

static uint64_t bitmap_bytes(uint64_t pages)
{
	return (pages + 63) / 64 * 8;
}

static uint64_t set_bits(const uint8_t *bytes, uint64_t count)
{
	uint64_t sum = 0;

	while (count--)
		sum += __builtin_popcount(*bytes++);
	return sum;
}

static uint64_t fnv1a(const uint8_t *bytes, uint64_t count)
{
	uint64_t hash = 0xcbf29ce484222325;

	while (count--)
		hash = (hash ^ *bytes++) * 0x100000001b3;
	return hash;
}

static void note_bitmap(enum kind kind, uint32_t slot, uint64_t pages, const void *bitmap, uint64_t instructions)
{
	uint64_t count = bitmap_bytes(pages);

	note((struct call){
		.kind = kind,
		.slot = slot,
		.pages = pages,
		.dirty = set_bits(bitmap, count),
		.sum = fnv1a(bitmap, count),
		.instructions = instructions,
	});
}

/* Records the slot's state. Only a call that switches the log of a slot counts. */
static void note_region(const struct kvm_userspace_memory_region *region, uint64_t instructions)
{
	uint64_t pages = region->memory_size / sysconf(_SC_PAGESIZE);
	struct kvm_userspace_memory_region *known;

	if (region->slot >= SLOTS_MAX) {
		errno = E2BIG;
		fail("too many slots");
	}
	known = &slots[region->slot];
	if (known->memory_size && region->memory_size && (known->flags ^ region->flags) & KVM_MEM_LOG_DIRTY_PAGES)
		note((struct call){
			.kind = LOG,
			.slot = region->slot,
			.pages = pages,
			.dirty = !!(region->flags & KVM_MEM_LOG_DIRTY_PAGES),
			.instructions = instructions,
		});
	*known = *region;
}

static void note_call(unsigned long request, const void *argument, uint64_t instructions)
{
	switch (request) {
	case KVM_RUN:
		note((struct call){ .kind = RUN, .instructions = instructions });
		break;
	/* The second structure begins with the fields of the first. */
	case KVM_SET_USER_MEMORY_REGION:
	case KVM_SET_USER_MEMORY_REGION2:
		note_region(argument, instructions);
		break;
	case KVM_GET_DIRTY_LOG: {
		const struct kvm_dirty_log *log = argument;

		/* The upper half is the address space; arm64 has only one. */
		note_bitmap(GET, log->slot, slots[log->slot % SLOTS_MAX].memory_size / sysconf(_SC_PAGESIZE),
			    log->dirty_bitmap, instructions);
		break;
	}
	case KVM_CLEAR_DIRTY_LOG: {
		const struct kvm_clear_dirty_log *log = argument;

		note_bitmap(CLEAR, log->slot, log->num_pages, log->dirty_bitmap, instructions);
		break;
	}
	}
}

/* Sets the chunk to TWOFOLD_CHUNK bytes. The selftests have no option for it, and the default of 0 splits nothing. */
static void set_chunk(int vm)
{
	const char *text = getenv("TWOFOLD_CHUNK");
	struct kvm_enable_cap cap = { .cap = KVM_CAP_ARM_EAGER_SPLIT_CHUNK_SIZE };

	if (!text || !*text)
		return;
	cap.args[0] = strtoull(text, NULL, 0);
	if (cap.args[0] && __real_ioctl(vm, KVM_ENABLE_CAP, &cap))
		fail("the kernel refuses TWOFOLD_CHUNK");
}

/* The linker replaces calls of ioctl by calls of this function. */
int __wrap_ioctl(int fd, unsigned long request, ...)
{
	uint64_t before, after;
	void *argument;
	va_list list;
	int result, error;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);

	open_counter();
	before = read_counter();
	result = __real_ioctl(fd, request, argument);
	error = errno;
	after = read_counter();
	if (request == KVM_CREATE_VM && result >= 0)
		set_chunk(result);
	else if (result >= 0)
		note_call(request, argument, after - before - own);
	errno = error;
	return result;
}

__attribute__((destructor)) static void tell(void)
{
	unsigned int i, count = __atomic_load_n(&call_count, __ATOMIC_ACQUIRE);

	if (count)
		printf("count: reading instructions=%llu\n", (unsigned long long)own);
	for (i = 0; i < count; i++) {
		const struct call *call = &calls[i];

		printf("count: call=%s", names[call->kind]);
		if (call->kind != RUN)
			printf(" slot=%u pages=%llu", call->slot, (unsigned long long)call->pages);
		if (call->kind == LOG)
			printf(" on=%llu", (unsigned long long)call->dirty);
		if (call->kind == GET || call->kind == CLEAR)
			printf(" dirty=%llu sum=%016llx", (unsigned long long)call->dirty, (unsigned long long)call->sum);
		printf(" instructions=%llu\n", (unsigned long long)call->instructions);
	}
	fflush(stdout);
}
