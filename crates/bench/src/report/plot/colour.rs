// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The colours of plots, for light and dark screens.
//!
//! A plot is drawn in the light colours. On a dark screen, rules of a style sheet select each light colour and replace
//! it. So a plot is right without a style sheet, and right on both screens with it.
//!
//! Invariant: each colour has a contrast of at least 4.5 to 1 with its page. (The grid has less, because it carries no
//! information.)

use plotters::style::RGBColor;
use std::fmt::Write;

/// A colour for light screens, and for dark ones.
#[derive(Clone, Copy, Debug)]
struct Pair(u32, u32);

const INK_PAIR: Pair = Pair(0x1f2328, 0xe6edf3);
const FAINT_PAIR: Pair = Pair(0x59636e, 0x9da7b1);
const GRID_PAIR: Pair = Pair(0xd5dbe1, 0x343b44);
/// Of variants; the first is the baseline's.
const VARIANTS: [Pair; 8] = [
    Pair(0x6b7280, 0x9aa4b2),
    Pair(0x0b62b8, 0x6cb6ff),
    Pair(0xb4500a, 0xffa657),
    Pair(0x1a7f37, 0x56d364),
    Pair(0x8250df, 0xd2a8ff),
    Pair(0x0d7680, 0x4fd1d9),
    Pair(0xbf3989, 0xff9bce),
    Pair(0x7d5a1e, 0xd9b36c),
];

/// Of verdicts: better, worse, and open. Blue and orange, because some readers confuse red and green.
const VERDICTS: [(&str, Pair); 3] = [("good", VARIANTS[1]), ("bad", VARIANTS[2]), ("open", VARIANTS[0])];

/// Of the page.
#[cfg(test)]
const PAGE_PAIR: Pair = Pair(0xffffff, 0x14181d);

/// Of text.
pub const INK: RGBColor = INK_PAIR.day();
/// Of secondary text.
pub const FAINT: RGBColor = FAINT_PAIR.day();
/// Of background lines.
pub const GRID: RGBColor = GRID_PAIR.day();

/// Of a better figure: faster, a gain, a target that is met.
pub const GOOD: RGBColor = VERDICTS[0].1.day();
/// Of a worse figure: slower, a loss, a target that is missed.
pub const BAD: RGBColor = VERDICTS[1].1.day();
/// Of a figure whose change may be either.
pub const OPEN: RGBColor = VERDICTS[2].1.day();

/// Returns the colour of a variant by its place; the colours repeat after the eighth.
pub const fn variant(place: usize) -> RGBColor {
    VARIANTS[place % VARIANTS.len()].day()
}

/// Returns the place of a variant's colour. A variant with none beside it does not get the baseline's grey.
pub const fn place(variant: usize, has_variants: bool) -> usize {
    if has_variants { variant } else { 1 }
}

/// Returns CSS rules for plots on dark screens, for the markers of variants in a text (`.v0` to `.v7`), and for the
/// words of verdicts: `--good`, `--bad`, `--open`.
pub fn style() -> String {
    let mut day = String::new();
    let mut night = String::new();
    for (place, Pair(light, dark)) in VARIANTS.into_iter().enumerate() {
        let _ = writeln!(day, ".v{place} {{ background: #{light:06x} }}");
        let _ = writeln!(night, ".v{place} {{ background: #{dark:06x} }}");
    }
    let mut variables = [String::new(), String::new()];
    for (name, Pair(light, dark)) in VERDICTS {
        let _ = write!(variables[0], " --{name}: #{light:06x};");
        let _ = write!(variables[1], " --{name}: #{dark:06x};");
    }
    let _ = writeln!(day, ":root {{{} }}", variables[0]);
    let _ = writeln!(night, ":root {{{} }}", variables[1]);
    for Pair(light, dark) in [INK_PAIR, FAINT_PAIR, GRID_PAIR].into_iter().chain(VARIANTS) {
        // As plotters writes them.
        let _ = writeln!(night, "svg [fill=\"#{light:06X}\"] {{ fill: #{dark:06x} }}");
        let _ = writeln!(night, "svg [stroke=\"#{light:06X}\"] {{ stroke: #{dark:06x} }}");
    }
    format!("{day}@media (prefers-color-scheme: dark) {{\n{night}}}\n")
}

impl Pair {
    const fn day(self) -> RGBColor {
        RGBColor((self.0 >> 16) as u8, (self.0 >> 8) as u8, self.0 as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of a colour (WCAG 2.2).
    fn luminance(colour: u32) -> f64 {
        let part = |shift: u32| {
            let value = f64::from((colour >> shift) & 0xff) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0)
    }

    fn contrast(one: u32, other: u32) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn all_that_says_something_stands_out_by_day_and_by_night() {
        assert!((contrast(0, 0xff_ffff) - 21.0).abs() < 0.01);
        for Pair(day, night) in [INK_PAIR, FAINT_PAIR].into_iter().chain(VARIANTS) {
            assert!(contrast(day, PAGE_PAIR.0) >= 4.5, "{day:06x}: {}", contrast(day, PAGE_PAIR.0));
            assert!(contrast(night, PAGE_PAIR.1) >= 4.5, "{night:06x}: {}", contrast(night, PAGE_PAIR.1));
        }
    }

    /// Colours as a reader without red or green cones sees them, in linear light (matrices of Viénot, Brettel and
    /// Mollon, 1999).
    #[test]
    fn better_and_worse_are_distinct_to_every_eye() {
        let linear = |colour: u32, shift: u32| (f64::from((colour >> shift) & 0xff) / 255.0).powf(2.2);
        for (red, green) in [(0.11238, 0.88762), (0.29275, 0.70725)] {
            let seen = |colour: u32| [linear(colour, 16) * red + linear(colour, 8) * green, linear(colour, 0)];
            for night in [false, true] {
                let of = |at: usize| {
                    let Pair(light, dark) = VERDICTS[at].1;
                    seen(if night { dark } else { light })
                };
                let ([yellow, blue], [other_yellow, other_blue]) = (of(0), of(1));
                assert!((yellow - other_yellow).hypot(blue - other_blue) > 0.3, "{red} {green} {night}");
            }
        }
    }

    #[test]
    fn words_and_plots_have_the_same_colours() {
        assert!(style().contains(":root { --good: #0b62b8; --bad: #b4500a; --open: #6b7280; }"), "{}", style());
        let sheet = include_str!("../style.css");
        assert!(!sheet.contains("--good:") && sheet.contains("var(--good)"), "each colour is defined once");
    }

    #[test]
    fn the_page_is_what_the_style_sheet_says() {
        let sheet = include_str!("../style.css");
        for page in [PAGE_PAIR.0, PAGE_PAIR.1] {
            assert!(sheet.contains(&format!("--page: #{page:06x}")), "{page:06x}");
        }
    }
}
