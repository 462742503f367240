/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asynchronous page faults: the calls, and the area that each vCPU shares with
 * the hypervisor. docs/async-page-fault.md is the specification.
 *
 * The numbers are those of crates/abi/src/async_fault.rs. The test
 * linux_header of that crate compares each of them, so each is one literal on
 * a line. All numbers in the area are little-endian.
 */
#ifndef TWOFOLD_APF_PROTOCOL_H
#define TWOFOLD_APF_PROTOCOL_H

#include <linux/build_bug.h>
#include <linux/stddef.h>
#include <linux/types.h>

#define TWOFOLD_APF_VERSION 0x10000
#define TWOFOLD_APF_COMPATIBLE "twofold,async-page-fault"
/* Of the machine `virt`. This module takes it from the device tree. */
#define TWOFOLD_APF_INTID 22

/* Calls by HVC, with these numbers in x0. */
#define TWOFOLD_APF_QUERY 0xc6000020
#define TWOFOLD_APF_ENABLE 0xc6000021
#define TWOFOLD_APF_DISABLE 0xc6000022
#define TWOFOLD_APF_ACKNOWLEDGE 0xc6000023

/* x1 of QUERY. */
#define TWOFOLD_APF_QUERY_VERSION 0
#define TWOFOLD_APF_QUERY_FLAGS 1
#define TWOFOLD_APF_QUERY_INTID 2
#define TWOFOLD_APF_QUERY_TOKENS_MAX 3

/* Bits of x2 of ENABLE. */
#define TWOFOLD_APF_FLAGS_KERNEL 1
#define TWOFOLD_APF_FLAGS_ALL 1

/* What the calls return. */
#define TWOFOLD_APF_SUCCESS 0
#define TWOFOLD_APF_NOT_SUPPORTED -1
#define TWOFOLD_APF_INVALID_PARAMETER -3

/* Tokens. */
#define TWOFOLD_APF_NO_TOKEN 0
#define TWOFOLD_APF_WAKE_ALL 0xffffffff
#define TWOFOLD_APF_TOKENS_MAX 64

/* The area: its size and alignment, and offsets from its start. */
#define TWOFOLD_APF_AREA_SIZE 64
#define TWOFOLD_APF_AREA_NOT_PRESENT 0x00
#define TWOFOLD_APF_AREA_LEVEL 0x04
#define TWOFOLD_APF_AREA_PC 0x08
#define TWOFOLD_APF_AREA_SEQUENCE 0x10
#define TWOFOLD_APF_AREA_READY 0x18
#define TWOFOLD_APF_AREA_RESERVED 0x1c
#define TWOFOLD_APF_AREA_ANNOUNCEMENT_SIZE 0x18

struct twofold_apf_area {
	__le32 not_present;
	__le32 level;
	__le64 pc;
	__le64 sequence;
	__le32 ready;
	__u8 reserved[TWOFOLD_APF_AREA_SIZE - TWOFOLD_APF_AREA_RESERVED];
} __aligned(TWOFOLD_APF_AREA_SIZE);

#define TWOFOLD_APF_FIELD_IS_AT(field, offset) \
	static_assert(offsetof(struct twofold_apf_area, field) == (offset))

TWOFOLD_APF_FIELD_IS_AT(not_present, TWOFOLD_APF_AREA_NOT_PRESENT);
TWOFOLD_APF_FIELD_IS_AT(level, TWOFOLD_APF_AREA_LEVEL);
TWOFOLD_APF_FIELD_IS_AT(pc, TWOFOLD_APF_AREA_PC);
TWOFOLD_APF_FIELD_IS_AT(sequence, TWOFOLD_APF_AREA_SEQUENCE);
TWOFOLD_APF_FIELD_IS_AT(ready, TWOFOLD_APF_AREA_READY);
TWOFOLD_APF_FIELD_IS_AT(ready, TWOFOLD_APF_AREA_ANNOUNCEMENT_SIZE);
TWOFOLD_APF_FIELD_IS_AT(reserved, TWOFOLD_APF_AREA_RESERVED);
static_assert(sizeof(struct twofold_apf_area) == TWOFOLD_APF_AREA_SIZE);

#endif
