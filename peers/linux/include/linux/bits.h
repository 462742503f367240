/* SPDX-License-Identifier: GPL-2.0-only */
/* Stand-in: single bits and runs of bits, of 64. */
#ifndef TWOFOLD_BITS_H
#define TWOFOLD_BITS_H

#define BIT(bit) (1UL << (bit))
/* All bits from `low` to `high`, both included. */
#define GENMASK(high, low) ((~0UL >> (63 - (high))) & (~0UL << (low)))

#endif
