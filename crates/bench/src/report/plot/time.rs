// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's rate over time: its steady rate, and what is lost below it.
//!
//! Invariant: the shaded area is the steady rate less the measured rate, where that is lower. The steady rate is the
//! rate before the first event.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::colour::{FAINT, GRID, INK};
use super::{Error, font, length, svg};
use crate::readable::Unit;
use crate::results::{Quantity, Series};
use crate::statistics::Quartiles;

/// Returns the rate before the first event: the median of the points there. `None` if there is no event, or no point
/// before it.
pub fn steady(series: &Series) -> Option<f64> {
    let first = series.events.iter().map(|(at, _)| *at).min_by(f64::total_cmp)?;
    let before: Vec<f64> = series.points.iter().filter(|(at, _)| *at < first).map(|(_, value)| *value).collect();
    (!before.is_empty()).then(|| Quartiles::of(before).median)
}

/// Draws one series in this colour; `top` is the largest value of all series that it is compared with.
///
/// # Errors
///
/// The same as [`svg`].
pub fn over_time(title: &str, series: &Series, colour: RGBColor, top: f64) -> Result<String, Error> {
    let end = series.points.iter().map(|(at, _)| *at).fold(0.0, f64::max);
    let end = if end > 0.0 && end.is_finite() { end } else { 1.0 };
    let top = if top > 0.0 && top.is_finite() { top * 1.05 } else { 1.0 };
    let unit = Unit::of(Quantity::Rate, top);
    svg(HEIGHT, title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_top(ABOVE)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(8)
            .y_labels(5)
            .max_light_lines(0)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_label_style(font(FAINT, HPos::Center))
            .y_label_style(font(FAINT, HPos::Right))
            .x_label_formatter(&|at| format!("{} s", super::tick(*at)))
            .y_label_formatter(&|value| format!("{} {}", super::tick(unit.scale(*value)), unit.name))
            .draw()?;

        if let Some(steady) = steady(series) {
            let below = |(at, value): &(f64, f64)| (*at, value.min(steady));
            let during: Vec<_> = series.points.iter().filter(|(at, _)| is_during(series, *at)).collect();
            if let (Some(first), Some(last)) = (during.first(), during.last()) {
                let edge = during.iter().map(|point| below(point));
                let outline: Vec<_> = edge.chain([(last.0, steady), (first.0, steady)]).collect();
                chart.draw_series([Polygon::new(outline, colour.mix(0.25).filled())])?;
            }
            let dashes = DashedLineSeries::new([(0.0, steady), (end, steady)], 6, 4, INK.stroke_width(1));
            chart.draw_series(dashes)?;
        }
        chart.draw_series([PathElement::new(series.points.clone(), colour.stroke_width(1))])?;

        // An event that repeats is a tick at the bottom; one that does not has its name.
        let mut taken = 0;
        let mut events: Vec<_> = series.events.iter().filter(|(at, _)| (0.0..=end).contains(at)).collect();
        events.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        for (at, name) in events {
            if series.events.iter().filter(|(_, other)| other == name).count() > FEW {
                chart.draw_series([PathElement::new(vec![(*at, 0.0), (*at, top * 0.04)], FAINT.stroke_width(1))])?;
                continue;
            }
            chart.draw_series([PathElement::new(vec![(*at, 0.0), (*at, top)], FAINT.stroke_width(1))])?;
            let half = length(name) as i32 / 2;
            let (left, right) = (half + 2, super::WIDTH as i32 - half - 2);
            let middle = chart.backend_coord(&(*at, 0.0)).0.clamp(left.min(right), right);
            // If two names would overlap, the second event has only its line; the table of events has both names.
            if middle - half > taken {
                area.draw_text(name, &font(INK, HPos::Center), (middle, ABOVE as i32 / 2))?;
                taken = middle + half + 6;
            }
        }
        Ok(())
    })
}

const HEIGHT: u32 = 240;
/// Pixels above, for the names of events.
const ABOVE: u32 = 24;
/// Events of one name that are drawn with the name.
const FEW: usize = 2;

/// Returns whether `at` is after the first event, and before the last if there are at least two.
fn is_during(series: &Series, at: f64) -> bool {
    let times = || series.events.iter().map(|(at, _)| *at);
    let first = times().fold(f64::INFINITY, f64::min);
    let last = if series.events.len() < 2 { f64::INFINITY } else { times().fold(0.0, f64::max) };
    (first..=last).contains(&at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Platform;

    fn series() -> Series {
        Series {
            experiment: "dirty-log".to_owned(),
            platform: Platform::Machine,
            configuration: Default::default(),
            name: "writes per second".to_owned(),
            points: vec![(0.0, 10.0), (1.0, 12.0), (2.0, 6.0), (3.0, 6.0), (4.0, 11.0)],
            events: vec![(1.5, "enable".to_owned()), (3.5, "disable".to_owned())],
        }
    }

    #[test]
    fn the_steady_rate_is_that_before() {
        assert_eq!(steady(&series()), Some(11.0));
        assert_eq!(steady(&Series { events: vec![], ..series() }), None);
        assert_eq!(steady(&Series { events: vec![(0.0, "enable".to_owned())], ..series() }), None);
    }

    #[test]
    fn what_is_lost_is_between_the_events() {
        let during: Vec<bool> = series().points.iter().map(|(at, _)| is_during(&series(), *at)).collect();
        assert_eq!(during, [false, false, true, true, false]);
        let text = over_time("a rate", &series(), super::super::colour::variant(1), 12.0).unwrap();
        assert!(text.contains("<polygon") && text.contains("enable") && text.contains("disable"), "{text}");
    }

    #[test]
    fn nothing_is_no_error() {
        let none = Series { points: vec![], events: vec![(f64::NAN, "x".to_owned())], ..series() };
        assert!(over_time("none", &none, super::super::colour::variant(1), 0.0).is_ok());
    }
}
