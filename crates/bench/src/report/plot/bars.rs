// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Horizontal bars, one below the other, each with its figure at the right, and their label above them. They start at
//! 0; a negative bar extends to the left.
//!
//! Invariant: all bars of a plot share one scale and start at 0, so twice the length is twice the value.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::colour::{FAINT, GRID, INK};
use super::{Area, Error, WIDTH, fitting, font, length, svg, tick};

/// Bars that are compared, with their label.
#[derive(Clone, Debug)]
pub struct Row {
    /// The label, above the bars.
    pub label: String,
    /// The bars, one below the other.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its parts from left to right: size and colour.
    pub parts: Vec<(f64, RGBColor)>,
    /// The ends of the middle half of the runs.
    pub spread: Option<(f64, f64)>,
    /// The figure, as text.
    pub value: String,
    /// A remark beside the figure.
    pub remark: String,
}

/// Draws all rows, with `unit` at the axis.
///
/// # Errors
///
/// The same as [`svg`].
pub fn bars(title: &str, rows: &[Row], unit: &str) -> Result<String, Error> {
    let bars = || rows.iter().flat_map(|row| &row.bars);
    let sum = |bar: &Bar| bar.parts.iter().map(|(size, _)| size).sum::<f64>();
    let ends = bars().flat_map(|bar| [Some(sum(bar)), bar.spread.map(|of| of.0), bar.spread.map(|of| of.1)]).flatten();
    let (low, high) =
        ends.filter(|end| end.is_finite()).fold((0.0_f64, 0.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let range = if low < high { low * 1.03..high * 1.03 } else { 0.0..1.0 };

    let longest = |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| length(text)).max().unwrap_or(0);
    let values = longest(&mut bars().map(|bar| &bar.value));
    let remarks = longest(&mut bars().map(|bar| &bar.remark));
    let columns = Columns { values, remarks };

    let height: u32 = rows.iter().map(Row::height).sum::<u32>() + AXIS + 2 * EDGE;
    svg(height, title, |area| draw(area, rows, unit, range, &columns))
}

/// Pixels of a bar, including the space to the next.
const BAR: u32 = 18;
/// Pixels of that space.
const BETWEEN: i32 = 5;
/// Pixels of a label.
const LABEL: u32 = 16;
/// Pixels between rows.
const GAP: u32 = 8;
/// Pixels of the axis and its ticks.
const AXIS: u32 = 22;
/// Pixels above the first and below the last.
const EDGE: u32 = 4;
/// Pixels between columns.
const SPACE: u32 = 12;

/// The columns' widths in pixels.
struct Columns {
    values: u32,
    remarks: u32,
}

impl Row {
    fn height(&self) -> u32 {
        self.label_height() + self.bars.len() as u32 * BAR + GAP
    }

    fn label_height(&self) -> u32 {
        if self.label.is_empty() { 0 } else { LABEL }
    }
}

fn draw(area: &Area<'_>, rows: &[Row], unit: &str, range: Range<f64>, columns: &Columns) -> Result<(), Error> {
    let left = EDGE;
    let remarks = if columns.remarks == 0 { 0 } else { columns.remarks + SPACE };
    let right = columns.values + SPACE + remarks + EDGE;
    let height = area.dim_in_pixel().1 - AXIS - 2 * EDGE;
    let mut chart = ChartBuilder::on(area)
        .margin_top(EDGE)
        .margin_bottom(EDGE)
        .margin_left(left)
        .margin_right(right)
        .x_label_area_size(AXIS)
        .build_cartesian_2d(range.clone(), 0.0..f64::from(height.max(1)))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(((WIDTH - left - right) / 60).max(2) as usize)
        .max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .x_label_style(font(FAINT, HPos::Center))
        .x_label_formatter(&|value| if *value == 0.0 { "0".to_owned() } else { format!("{} {unit}", tick(*value)) })
        .draw()?;
    if range.start < 0.0 {
        let zero = vec![(0.0, 0.0), (0.0, f64::from(height))];
        chart.draw_series([PathElement::new(zero, INK.stroke_width(1))])?;
    }

    let (values, remarks) = ((WIDTH - EDGE - remarks) as i32, (WIDTH - EDGE) as i32);
    let mut top = 0;
    for row in rows {
        top += GAP / 2;
        if !row.label.is_empty() {
            let label = fitting(&row.label, WIDTH - 2 * EDGE);
            area.draw_text(&label, &font(INK, HPos::Left), (EDGE as i32, (EDGE + top + LABEL / 2) as i32))?;
            top += LABEL;
        }
        for bar in &row.bars {
            let up = |from: i32| f64::from(height as i32 - top as i32 - from);
            let mut start = 0.0;
            for (size, colour) in &bar.parts {
                let corners = [(start, up(BETWEEN / 2)), (start + size, up(BAR as i32 - BETWEEN + BETWEEN / 2))];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                start += size;
            }
            let centre = BETWEEN / 2 + (BAR as i32 - BETWEEN) / 2;
            if let Some((lower, upper)) = bar.spread {
                let line = |points: Vec<(f64, f64)>| PathElement::new(points, INK.stroke_width(1));
                let end = |at: f64| line(vec![(at, up(centre - 3)), (at, up(centre + 3))]);
                chart.draw_series([line(vec![(lower, up(centre)), (upper, up(centre))]), end(lower), end(upper)])?;
            }
            let text = (EDGE + top) as i32 + centre;
            area.draw_text(&bar.value, &font(INK, HPos::Right), (values, text))?;
            area.draw_text(&bar.remark, &font(FAINT, HPos::Right), (remarks, text))?;
            top += BAR;
        }
        top += GAP / 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::colour::variant;
    use super::*;

    #[test]
    fn twice_as_much_is_twice_as_long() {
        let bar = |size| Bar {
            parts: vec![(size, variant(1))],
            spread: Some((size, size)),
            value: format!("{size} ms"),
            remark: String::new(),
        };
        let rows = [Row { label: "clear & more".to_owned(), bars: vec![bar(10.0), bar(20.0)] }];
        let text = bars("a plot", &rows, "ms").unwrap();
        let widths: Vec<f64> = text
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("#0B62B8"))
            .map(|line| line.split_once("width=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.02, "{widths:?}");
        assert!(text.contains("clear &amp; more") && text.contains("20 ms"));
    }

    #[test]
    fn what_is_less_than_nothing_is_drawn_to_the_left() {
        let bar =
            |size| Bar { parts: vec![(size, variant(1))], spread: None, value: String::new(), remark: String::new() };
        let rows = [Row { label: String::new(), bars: vec![bar(-10.0), bar(20.0)] }];
        let text = bars("lost", &rows, "ms").unwrap();
        let place = |line: &str, name: &str| -> f64 {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let drawn = text.lines().filter(|line| line.starts_with("<rect") && line.contains("#0B62B8"));
        let drawn: Vec<_> = drawn.map(|line| (place(line, "x"), place(line, "width"))).collect();
        let [(left, short), (zero, long)] = drawn[..] else { panic!("two bars, not {drawn:?}: {text}") };
        assert!(left < zero && (left + short - zero).abs() <= 1.0, "{drawn:?}");
        assert!((long / short - 2.0).abs() < 0.05, "{drawn:?}");
        // A plot with negative bars only has room for them too.
        let text = bars("lost", &[Row { label: String::new(), bars: vec![bar(-10.0)] }], "ms").unwrap();
        assert!(text.lines().any(|line| line.starts_with("<rect") && place(line, "width") > 100.0), "{text}");
    }

    #[test]
    fn nothing_is_no_error() {
        let bar = Bar { parts: vec![(0.0, variant(0))], spread: None, value: "0".to_owned(), remark: String::new() };
        assert!(bars("zeros", &[Row { label: String::new(), bars: vec![bar] }], "").unwrap().contains(">\n0\n"));
        assert!(bars("none", &[], "").is_ok());
    }
}
