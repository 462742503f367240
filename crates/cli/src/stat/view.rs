// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The screen of `twofold stat`: a row for each guest, and all figures of the one that is chosen.
//!
//! Invariant: a column that does not fit is left out, from the right; the chosen guest's figures have them all. What is not
//! known is `-`, not 0.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

use super::rates::{GuestRates, Rates};

/// A column: its title, its width, and what it has of a guest. The first two are at the left, the others at the right.
struct Column(&'static str, u16, fn(&GuestRates) -> String);

const COLUMNS: [Column; 14] = [
    Column("GUEST", 15, |guest| guest.sample.name.clone()),
    Column("STATE", 8, |guest| guest.sample.state.clone()),
    Column("CPU %", 6, |guest| share(guest.share("cpu.ran"))),
    Column("STOLEN", 6, |guest| share(guest.share("cpu.stolen"))),
    Column("MEMORY", 6, |guest| twofold_launch::guest::size(guest.sample.memory)),
    Column("FAULT/s", 8, |guest| short(guest.rate("faults"))),
    Column("EXIT/s", 8, |guest| short(guest.rate("exits"))),
    Column("TLBI/s", 7, |guest| short(guest.rate("tlbi"))),
    Column("4K", 8, |guest| figure(guest, "mapped.pages_4k")),
    Column("2M", 6, |guest| figure(guest, "mapped.blocks_2m")),
    Column("1G", 5, |guest| figure(guest, "mapped.blocks_1g")),
    Column("ABORT/s", 8, |guest| short(guest.rates.get("exits.data_abort").copied())),
    Column("IRQ/s", 8, |guest| short(guest.rates.get("exits.interrupt").copied())),
    Column("HVC/s", 8, |guest| short(guest.rates.get("exits.hvc").copied())),
];

/// Draws the screen, with this guest chosen.
pub fn draw(frame: &mut Frame<'_>, rates: &Rates, chosen: usize) {
    let rows = u16::try_from(rates.guests.len()).unwrap_or(u16::MAX).saturating_add(2);
    let [title, table, detail, help] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(rows), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    let since = if rates.seconds > 0.0 { format!("over {:.1} s", rates.seconds) } else { "first sample".to_owned() };
    frame.render_widget(Line::from(format!("twofold stat: {} guests, {since}", rates.guests.len())).bold(), title);

    // A space between two.
    let mut used = 0;
    let fits = |column: &&Column| {
        used += column.1 + 1;
        used <= table.width + 1
    };
    let columns: Vec<_> = COLUMNS.iter().take_while(fits).collect();
    let cell = |number: usize, Column(_, width, _): &Column, text: String| match number {
        0 | 1 => text,
        _ => format!("{text:>width$}", width = usize::from(*width)),
    };
    let titles = columns.iter().enumerate().map(|(number, column)| cell(number, column, column.0.to_owned()));
    let header = Row::new(titles.collect::<Vec<_>>()).style(Style::new().underlined());
    let row = |(place, guest): (usize, &GuestRates)| {
        let cells = columns.iter().enumerate().map(|(number, column)| cell(number, column, column.2(guest)));
        let row = Row::new(cells.collect::<Vec<_>>());
        if place == chosen { row.reversed() } else { row }
    };
    let widths = columns.iter().map(|column| Constraint::Length(column.1));
    let guests = rates.guests.iter().enumerate().map(row);
    frame.render_widget(Table::new(guests, widths).header(header).column_spacing(1), table);

    if let Some(guest) = rates.guests.get(chosen) {
        let block = Block::bordered().title(format!(" {} ", guest.sample.name));
        let inner = block.inner(detail);
        let height = usize::from(inner.height).max(1);
        let known: Vec<_> = guest.sample.figures.iter().filter(|(_, value)| **value != 0).collect();
        let line = |key: &str, value: u64| {
            let rate = short(guest.rates.get(key).copied());
            // Two in 80 columns.
            format!("{key:<22.22}{:>7}{rate:>7}/s", short(Some(value as f64)))
        };
        // Down, then to the right, as far as there is room.
        let lines = (0..height).map(|row| {
            let figures = known.iter().skip(row).step_by(height);
            Line::from(figures.map(|(key, value)| line(key, **value)).collect::<Vec<_>>().join(" "))
        });
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(block), detail);
    }
    frame.render_widget(Line::from("q: leave   up, down: choose a guest").dim(), help);
}

fn figure(guest: &GuestRates, key: &str) -> String {
    short(guest.sample.figures.get(key).map(|value| *value as f64))
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", 100.0 * share))
}

/// At most seven characters: `12`, `3.4`, `56789`, `123k`, `4.5M`.
fn short(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M")];
    match units.iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{:.1}{name}", value / unit),
        None if value >= 100_000.0 => format!("{:.0}k", value / 1000.0),
        None if value.fract() == 0.0 || value >= 100.0 => format!("{value:.0}"),
        None => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::samples;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// The lines of a screen, without the spaces at their ends.
    fn screen(width: u16, height: u16, chosen: usize) -> Vec<String> {
        let [before, now] = samples();
        let rates = Rates::between(Some(&before), now);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &rates, chosen)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row: u16| (0..width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..height).map(|row| line(row).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_of_80_columns() {
        let lines = screen(80, 14, 0);
        let expected = [
            "twofold stat: 2 guests, over 1.5 s",
            "GUEST           STATE     CPU % STOLEN MEMORY  FAULT/s   EXIT/s  TLBI/s       4K",
            "web             running     0.2      -   512M        0     2400     267     1234",
            "db              stopped     0.0      -   512M        0        0       0        0",
            "",
        ];
        // No room for the others.
        assert_eq!(lines[..5], expected, "{lines:#?}");
        assert!(lines[5].starts_with("┌ web "), "{lines:#?}");
        assert_eq!(lines[6], "│counter.frequency        1.0M      0/s mapped.pages_4k          1234      0/s │");
        assert!(lines.iter().any(|line| line.contains("exits.hvc                1500    800/s")), "{lines:#?}");
        assert_eq!(lines[13], "q: leave   up, down: choose a guest");
    }

    #[test]
    fn a_screen_of_200_columns_has_what_does_not_fit_into_80() {
        let lines = screen(200, 14, 1);
        let titles = "GUEST           STATE     CPU % STOLEN MEMORY  FAULT/s   EXIT/s  TLBI/s       4K     2M    1G  ABORT/s    IRQ/s    HVC/s";
        assert_eq!(lines[1], titles, "{lines:#?}");
        assert!(lines[2].ends_with("1234      7     -     1600        -      800"), "{lines:#?}");
        assert!(lines[5].starts_with("┌ db "), "{lines:#?}");
    }

    #[test]
    fn a_small_screen_is_no_panic() {
        for (width, height) in [(1, 1), (20, 3), (80, 2), (300, 100)] {
            screen(width, height, 7);
        }
    }

    #[test]
    fn figures_are_short() {
        let texts =
            [None, Some(0.0), Some(1.25), Some(99.9), Some(99_999.0), Some(123_456.0), Some(4.56e6), Some(1e13)];
        let expected = ["-", "0", "1.2", "99.9", "99999", "123k", "4.6M", "10.0T"];
        assert_eq!(texts.map(short), expected);
    }
}
