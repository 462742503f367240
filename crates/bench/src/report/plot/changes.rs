// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes with their intervals, around a line at no change, beside the published changes: less is to the left, more to
//! the right.
//!
//! Invariant: a change is drawn with its whole interval, or not at all. A cost so large that it leaves no room for the
//! others is printed as a figure at the line.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::colour::{FAINT, GRID, INK};
use super::{Area, Error, WIDTH, fitting, font, svg};
use crate::report::words::{self, Noun};
use crate::statistics::Ratio;

/// A change, as the ratio to the figure before.
#[derive(Clone, Debug)]
pub struct Change {
    /// The label.
    pub label: String,
    /// The published ratio.
    pub published: Option<f64>,
    /// Our ratio.
    pub ours: Option<Ratio>,
    /// The colour.
    pub colour: RGBColor,
}

/// Draws all changes, one below the other.
///
/// # Errors
///
/// The same as [`svg`].
pub fn changes(title: &str, rows: &[Change]) -> Result<String, Error> {
    let ends = rows.iter().flat_map(|row| {
        let ours = row.ours.map(|of| [of.low, of.median, of.high]);
        row.published.into_iter().chain(ours.into_iter().flatten())
    });
    let finite = ends.filter(|end| end.is_finite() && *end <= FARTHEST);
    let (low, high) = finite.fold((1.0_f64, 1.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let room = ((high - low) * 0.05).max(0.01);
    svg(rows.len() as u32 * LINE + AXIS + 2 * EDGE, title, |area| draw(area, rows, low - room..high + room))
}

/// Three times the cost. A larger one is printed as a figure.
const FARTHEST: f64 = 3.0;
/// Pixels of a row: the label, and the marks below it.
const LINE: u32 = LABEL + MARKS;
/// Pixels of a label.
const LABEL: u32 = 16;
/// Pixels of the marks.
const MARKS: u32 = 18;
/// Pixels beside the axis, for half of its outer ticks.
const SIDE: u32 = 34;
/// Pixels of the axis and its ticks.
const AXIS: u32 = 22;
/// Pixels above the first and below the last.
const EDGE: u32 = 4;

fn draw(area: &Area<'_>, rows: &[Change], range: std::ops::Range<f64>) -> Result<(), Error> {
    let height = rows.len() as i32 * LINE as i32;
    let mut chart = ChartBuilder::on(area)
        .margin_top(EDGE)
        .margin_bottom(EDGE)
        .margin_left(SIDE)
        .margin_right(SIDE)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(range.clone(), 0.0..f64::from(height.max(1)))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(((WIDTH - 2 * SIDE) / 75).max(2) as usize)
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_label_style(font(FAINT, HPos::Center))
        .x_label_formatter(&|ratio| axis(*ratio))
        .draw()?;
    chart.draw_series([PathElement::new(vec![(1.0, 0.0), (1.0, f64::from(height))], INK.stroke_width(1))])?;
    for (at, row) in rows.iter().enumerate() {
        let top = at as i32 * LINE as i32;
        let label = fitting(&row.label, WIDTH - 2 * EDGE);
        area.draw_text(&label, &font(INK, HPos::Left), (EDGE as i32, EDGE as i32 + top + LABEL as i32 / 2))?;
        let down = top + LABEL as i32 + MARKS as i32 / 2;
        let y = f64::from(height - down);
        if let Some(far) = far(row) {
            let (x, _) = chart.backend_coord(&(range.end, y));
            area.draw_text(&far, &font(row.colour, HPos::Right), (x - 4, EDGE as i32 + down))?;
            continue;
        }
        if let Some(ours) = row.ours.filter(|of| of.low.is_finite() && of.median.is_finite() && of.high.is_finite()) {
            let style = row.colour.stroke_width(3);
            chart.draw_series([PathElement::new(vec![(ours.low, y), (ours.high, y)], style)])?;
            chart.draw_series([Circle::new((ours.median, y), 5, row.colour.filled())])?;
        }
        if let Some(published) = row.published.filter(|of| of.is_finite()) {
            let (x, y) = chart.backend_coord(&(published, y));
            let diamond = vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y), (x, y - 6)];
            area.draw(&PathElement::new(diamond, INK.stroke_width(2)))?;
        }
    }
    Ok(())
}

/// Returns the text that replaces a mark too far away to draw.
fn far(row: &Change) -> Option<String> {
    let (ours, published) = (row.ours.map(|of| of.median), row.published);
    let is_far = |of: &Option<f64>| of.is_some_and(|of| of > FARTHEST);
    let shown = |of: Option<f64>| of.map_or("-".to_owned(), |of| words::change(of, Noun::TIME));
    (is_far(&ours) || is_far(&published)).then(|| match published {
        None => shown(ours),
        Some(_) => format!("{}; published: {}", shown(ours), shown(published)),
    })
}

/// A tick of the axis: `50 % less`, `0`, `50 % more`.
fn axis(ratio: f64) -> String {
    let percent = ((ratio - 1.0) * 100.0).round();
    match percent {
        0.0 => "0".to_owned(),
        _ if percent < 0.0 => format!("{:.0} % less", -percent),
        _ => format!("{percent:.0} % more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::colour::variant;
    use super::*;

    #[test]
    fn a_great_cost_is_labelled_and_leaves_room_for_others() {
        let ours = Some(Ratio { median: 86.0, low: 81.0, high: 91.0 });
        let row = Change { label: "get".to_owned(), published: Some(6914.0), ours, colour: variant(1) };
        let text = changes("changes", &[row]).unwrap();
        assert!(text.contains("86.0 times the time; published: 6914 times the time"), "{text}");
        assert!(!text.contains("<circle") && !text.contains("00 %"), "{text}");
    }

    #[test]
    fn each_has_its_interval_and_what_was_published() {
        let ours = Some(Ratio { median: 0.6, low: 0.55, high: 0.65 });
        let row = |label: &str| Change { label: label.to_owned(), published: Some(0.56), ours, colour: variant(1) };
        let rows = [row("one"), Change { ours: None, ..row("other") }];
        let text = changes("changes", &rows).unwrap();
        assert_eq!(text.matches("<circle").count(), 1);
        assert!(text.contains(">\none\n") && text.contains(">\nother\n"));
        assert!(text.contains(" % less"), "{text}");
        assert!(changes("none", &[]).is_ok());
        let strange = Ratio { median: f64::NAN, low: 0.0, high: f64::INFINITY };
        assert!(changes("strange", &[Change { ours: Some(strange), ..row("x") }]).is_ok());
    }
}
