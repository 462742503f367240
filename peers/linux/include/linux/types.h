/* SPDX-License-Identifier: GPL-2.0-only */
/* Stand-in: the kernel's names for integers, in user space. */
#ifndef TWOFOLD_TYPES_H
#define TWOFOLD_TYPES_H

#include <stdbool.h>
#include <stddef.h>

typedef signed char s8;
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u64 phys_addr_t;

#endif
