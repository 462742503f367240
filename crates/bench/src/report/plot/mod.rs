// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plots, as SVG elements of a page.
//!
//! Invariant: a plot has only the colours of [`colour`], so that a style sheet knows all of them. No information is in
//! colour alone: a table beside the plot has it too.

pub mod bars;
pub mod changes;
pub mod colour;
pub mod sizes;
pub mod time;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of all plots in pixels: little more than that of a telephone, so that their text stays readable there.
pub const WIDTH: u32 = 420;

/// The error of drawing.
pub type Error = DrawingAreaErrorKind<std::io::Error>;

/// The drawing area of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Runs `paint` on an area of this height, and returns it as an element of a page.
///
/// # Errors
///
/// The errors of `paint`.
pub fn svg(height: u32, title: &str, paint: impl FnOnce(&Area<'_>) -> Result<(), Error>) -> Result<String, Error> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        paint(&area)?;
        area.present()?;
    }
    // An SVG element inside of HTML needs no namespace, and a report must not contain an address.
    let text = text.replacen(r#" xmlns="http://www.w3.org/2000/svg""#, "", 1);
    let title = maud::html! { (title) }.into_string();
    Ok(text.replacen("<svg ", &format!(r#"<svg role="img" aria-label="{title}" "#), 1))
}

/// Font size in pixels.
pub const TEXT: f64 = 12.0;

/// Returns a font of this colour, anchored at one of its sides.
pub fn font(colour: RGBColor, side: HPos) -> TextStyle<'static> {
    // plotters divides its font sizes by 1.24.
    ("sans-serif", TEXT * 1.24).into_font().color(&colour).pos(Pos::new(side, VPos::Center))
}

/// Returns the approximate width of a text in pixels.
pub fn length(text: &str) -> u32 {
    (text.chars().count() as f64 * TEXT * 0.61).ceil() as u32
}

/// Returns as much of a text as fits into this many pixels.
pub fn fitting(text: &str, pixels: u32) -> String {
    if length(text) <= pixels {
        return text.to_owned();
    }
    let (letters, all) = (text.chars().count() as u32, length(text).max(1));
    let some = (letters * pixels / all).saturating_sub(1) as usize;
    format!("{}…", text.chars().take(some).collect::<String>().trim_end())
}

/// Formats a value of an axis without trailing zeros: `0`, `250`, `1.5`.
pub fn tick(value: f64) -> String {
    let scaled = [(1e9, "G"), (1e6, "M"), (1e3, "k")].into_iter().find(|(size, _)| value.abs() >= *size);
    let (value, sign) = scaled.map_or((value, ""), |(size, sign)| (value / size, sign));
    let text = format!("{value:.3}");
    format!("{}{sign}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        assert_eq!([0.0, 0.5, 250.0, 1500.0, 2e6].map(tick), ["0", "0.5", "250", "1.5k", "2M"]);
    }

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(fitting("clear", 100), "clear");
        let cut = fitting("anonymous_hugetlb_1gb", 100);
        assert!(cut.ends_with('…') && length(&cut) <= 100, "{cut}");
        assert_eq!(fitting("x", 0), "…");
    }

    #[test]
    fn a_plot_holds_no_address_and_its_title_is_escaped() {
        let text = svg(10, "<a> & \"b\"", |_| Ok(())).unwrap();
        assert!(
            text.starts_with(r#"<svg role="img" aria-label="&lt;a&gt; &amp; &quot;b&quot;" width="420""#),
            "{text}"
        );
        assert!(!text.contains("http"));
    }
}
