/* SPDX-License-Identifier: GPL-2.0-only */
/* Stand-in: fields of a word, each named by its mask, a constant. */
#ifndef TWOFOLD_BITFIELD_H
#define TWOFOLD_BITFIELD_H

#define FIELD_SHIFT(mask) __builtin_ctzll(mask)
#define FIELD_GET(mask, word) (((word) & (mask)) >> FIELD_SHIFT(mask))
#define FIELD_PREP(mask, value) (((u64)(value) << FIELD_SHIFT(mask)) & (mask))

#endif
