// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost against memory size: a line for each variant, from size to size.
//!
//! Invariant: both axes are logarithmic, so a cost in proportion to the memory is a rising straight line, and a
//! constant cost is level. All figures are above 0.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::colour::{FAINT, GRID, INK};
use super::{Error, font, svg, tick};
use crate::readable::{self, Unit};
use crate::results::Quantity;
use crate::statistics::Quartiles;

/// A variant's figures at each size in bytes.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its colour.
    pub colour: RGBColor,
    /// Sizes and figures, ordered by size.
    pub points: Vec<(u64, Quartiles)>,
}

/// Draws all lines; returns `None` if a figure is 0 or less, or there is only one size.
///
/// # Errors
///
/// The same as [`svg`].
pub fn sizes(title: &str, lines: &[Line], quantity: Quantity) -> Result<Option<String>, Error> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let low = points().map(|(_, of)| of.lower).fold(f64::INFINITY, f64::min);
    let high = points().map(|(_, of)| of.upper).fold(0.0, f64::max);
    let (Some(first), Some(last)) = (points().map(|(at, _)| *at).min(), points().map(|(at, _)| *at).max()) else {
        return Ok(None);
    };
    if low <= 0.0 || !high.is_finite() || first == 0 || first == last {
        return Ok(None);
    }
    let unit = Unit::of(quantity, high);
    let log = |size: u64| (size as f64).log2();
    let y = |value: f64| value.log10();
    // Room at both sides, so that the outer points are not on the frame.
    let (left, right) = (log(first) - 0.3, log(last) + 0.3);
    let (middle, half) = ((y(low) + y(high)) / 2.0, ((y(high) - y(low)) / 2.0 + 0.1).max(LEAST / 2.0));
    let (bottom, top) = (middle - half, middle + half);
    let text = svg(HEIGHT, title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(24)
            .y_label_area_size(72)
            .build_cartesian_2d(left..right, bottom..top)?;
        chart.configure_mesh().disable_mesh().axis_style(GRID).x_labels(0).y_labels(0).draw()?;
        for value in ticks(bottom, top) {
            chart.draw_series([PathElement::new(vec![(left, y(value)), (right, y(value))], GRID.stroke_width(1))])?;
            let (x, at) = chart.backend_coord(&(left, y(value)));
            let shown = format!("{} {}", tick(unit.scale(value)), unit.name);
            area.draw_text(shown.trim_end(), &font(FAINT, HPos::Right), (x - 8, at))?;
        }
        let mut sizes: Vec<u64> = points().map(|(size, _)| *size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut taken = i32::MIN;
        for size in sizes {
            let (x, bottom) = chart.backend_coord(&(log(size), bottom));
            let shown = readable::bytes(size);
            let half = super::length(&shown) as i32 / 2;
            if x - half > taken {
                area.draw_text(&shown, &font(FAINT, HPos::Center), (x, bottom + 14))?;
                taken = x + half + 6;
            }
        }
        for Line { colour, points } in lines {
            let line = points.iter().map(|(size, of)| (log(*size), y(of.median)));
            chart.draw_series([PathElement::new(line.collect::<Vec<_>>(), colour.stroke_width(2))])?;
            for (size, of) in points {
                let x = log(*size);
                let spread = vec![(x, y(of.lower)), (x, y(of.upper))];
                chart.draw_series([PathElement::new(spread, INK.stroke_width(1))])?;
                chart.draw_series([Circle::new((x, y(of.median)), 4, colour.filled())])?;
            }
        }
        Ok(())
    })?;
    Ok(Some(text))
}

const HEIGHT: u32 = 260;
/// The least number of decades from bottom to top, so that a small change looks small.
const LEAST: f64 = 1.0;

/// Returns 1, 2 and 5 times each power of ten between these logarithms; only the powers if there are more than three
/// decades.
fn ticks(bottom: f64, top: f64) -> Vec<f64> {
    let steps: &[f64] = if top - bottom > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = bottom.floor() as i32..=top.ceil() as i32;
    let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    all.filter(|value| (bottom..=top).contains(&value.log10())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::colour::variant;
    use super::*;

    fn line(points: &[(u64, f64)]) -> Line {
        let points = points.iter().map(|(size, value)| (*size << 30, Quartiles::of([*value])));
        Line { colour: variant(1), points: points.collect() }
    }

    #[test]
    fn sizes_stand_below_and_figures_at_the_side() {
        let lines = [line(&[(1, 1e6), (2, 2.1e6), (4, 4e6)])];
        let text = sizes("get", &lines, Quantity::Time).unwrap().unwrap();
        for shown in ["1 GiB", "2 GiB", "4 GiB", "1 ms", "2 ms"] {
            assert!(text.contains(&format!(">\n{shown}\n")), "{shown}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 3);
    }

    #[test]
    fn what_has_no_logarithm_is_not_drawn() {
        assert!(sizes("zero", &[line(&[(1, 0.0), (2, 1.0)])], Quantity::Time).unwrap().is_none());
        assert!(sizes("one size", &[line(&[(1, 1.0)])], Quantity::Time).unwrap().is_none());
        assert!(sizes("none", &[], Quantity::Time).unwrap().is_none());
    }

    #[test]
    fn ticks_are_one_two_five() {
        let close = |one: Vec<f64>, other: &[f64]| one.iter().zip(other).all(|(a, b)| (a / b - 1.0).abs() < 1e-9);
        assert!(close(ticks(-0.05, 1.05), &[1.0, 2.0, 5.0, 10.0]));
        assert_eq!(ticks(0.0, 6.5).len(), 7);
    }
}
