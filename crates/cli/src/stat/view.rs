// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The screen of `twofold stat`: a row for each guest, and all figures of the one that is chosen.
//!
//! Invariant: a column that does not fit is left out, from the right; the chosen guest's figures have them all. What is not
//! known is `-`, not 0. The columns of a store for pages are there only if a guest has one.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};

use super::rates::{GuestRates, Rates};

/// A column: its title, its width, and what it has of a guest. The first two are at the left, the others at the right. The
/// first one is as wide as the longest name, up to its width.
struct Column(&'static str, u16, fn(&GuestRates) -> String);

const FIRST: [Column; 5] = [
    Column("GUEST", 15, |guest| guest.sample.name.clone()),
    Column("STATE", 8, |guest| guest.sample.state.clone()),
    Column("CPU %", 6, |guest| share(guest.share("cpu.ran"))),
    Column("STOLEN", 6, |guest| share(guest.share("cpu.stolen"))),
    Column("MEMORY", 6, |guest| twofold_launch::guest::size(guest.sample.memory)),
];
/// Those of guests whose pages leave to a store.
const STORE: [Column; 5] = [
    Column("RESIDENT", 8, |guest| pages(guest, "pages.resident")),
    Column("WSS", 6, |guest| pages(guest, "pages.working_set")),
    Column("OUT/s", 7, |guest| short(guest.sum(&["swap.pages_out"]))),
    Column("IN/s", 7, |guest| short(guest.sum(&["swap.pages_read", "swap.pages_ahead"]))),
    Column("WAIT", 6, |guest| share(guest.share("swap.waited"))),
];
const OTHERS: [Column; 14] = [
    Column("4K", 6, |guest| figure(guest, "leaves.pages_4k")),
    Column("2M", 5, |guest| figure(guest, "leaves.blocks_2m")),
    Column("1G", 3, |guest| figure(guest, "leaves.blocks_1g")),
    Column("FAULT/s", 7, |guest| short(guest.rate("faults"))),
    Column("DIRTY/s", 7, |guest| short(guest.sum(&["dirty.pages"]))),
    Column("EXIT/s", 7, |guest| short(guest.rate("exits"))),
    Column("TLBI/s", 7, |guest| short(guest.rate("tlbi"))),
    Column("DISK/s", 7, |guest| short(guest.sum(&["disk.requests"]))),
    Column("DISK B/s", 8, |guest| short(guest.sum(&["disk.bytes_read", "disk.bytes_written"]))),
    Column("NET/s", 7, |guest| short(guest.sum(&["net.frames_sent", "net.frames_received"]))),
    Column("NET B/s", 7, |guest| short(guest.sum(&["net.bytes_sent", "net.bytes_received"]))),
    Column("ABORT/s", 7, |guest| short(guest.sum(&["exits.data_abort"]))),
    Column("IRQ/s", 7, |guest| short(guest.sum(&["exits.interrupt"]))),
    Column("HVC/s", 7, |guest| short(guest.sum(&["exits.hvc"]))),
];

/// Draws the screen, with this guest chosen.
pub fn draw(frame: &mut Frame<'_>, rates: &Rates, chosen: usize) {
    let rows = u16::try_from(rates.guests.len()).unwrap_or(u16::MAX).saturating_add(2);
    let [title, table, detail, help] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(rows), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    let since = if rates.seconds > 0.0 { format!("over {:.1} s", rates.seconds) } else { "first sample".to_owned() };
    let free = rates.hypervisor.get("memory.free").map_or_else(String::new, |free| format!(", {} free", bytes(*free)));
    frame
        .render_widget(Line::from(format!("twofold stat: {} guests, {since}{free}", rates.guests.len())).bold(), title);

    // A space between two.
    let longest = rates.guests.iter().map(|guest| guest.sample.name.len()).max().unwrap_or(0);
    let has_store = rates.guests.iter().any(|guest| guest.sample.figures.contains_key("pages.limit"));
    let all = FIRST.iter().chain(STORE.iter().filter(|_| has_store)).chain(&OTHERS);
    let [Column(name, most, _), ..] = FIRST;
    let first = longest.clamp(name.len(), usize::from(most)) as u16;
    let widths = core::iter::once(first).chain(all.clone().skip(1).map(|column| column.1));
    let mut used = 0;
    let fits = |(_, width): &(&Column, u16)| {
        used += width + 1;
        used <= table.width + 1
    };
    let (columns, widths): (Vec<_>, Vec<_>) = all.zip(widths).take_while(fits).unzip();
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
    let widths = widths.into_iter().map(Constraint::Length);
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

/// A figure that is a number of pages, in bytes.
fn pages(guest: &GuestRates, key: &str) -> String {
    guest.sample.figures.get(key).map_or_else(|| "-".to_owned(), |pages| bytes(pages * 4096))
}

/// A size by powers of 1024.
fn bytes(bytes: u64) -> String {
    let units = [(30, 'G'), (20, 'M'), (10, 'K')];
    match units.iter().find(|(shift, _)| bytes >> shift >= 10) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
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
            "twofold stat: 2 guests, over 1.5 s, 1929M free",
            "GUEST STATE     CPU % STOLEN MEMORY     4K    2M  1G FAULT/s DIRTY/s  EXIT/s",
            "web   running     0.2      -   512M   1234     7   0       0     800    2400",
            "db    stopped     0.0      -   512M      0     7   0       0       -       0",
            "",
        ];
        // No room for the others.
        assert_eq!(lines[..5], expected, "{lines:#?}");
        assert!(lines[5].starts_with("┌ web "), "{lines:#?}");
        let has = |text: &str| assert!(lines[6..].iter().any(|line| line.contains(text)), "{text}: {lines:#?}");
        has("counter.frequency        1.0M      0/s");
        has("exits.hvc                1500    800/s");
        has("disk.requests             750    400/s");
        assert_eq!(lines[13], "q: leave   up, down: choose a guest");
    }

    #[test]
    fn a_screen_of_200_columns_has_what_does_not_fit_into_80() {
        let lines = screen(200, 14, 1);
        let expected = [
            "GUEST STATE     CPU % STOLEN MEMORY     4K    2M  1G FAULT/s DIRTY/s  EXIT/s  TLBI/s  DISK/s DISK B/s   NET/s NET B/s ABORT/s   IRQ/s   HVC/s",
            "web   running     0.2      -   512M   1234     7   0       0     800    2400     267     400     3.7M       -       -    1600       -     800",
            "db    stopped     0.0      -   512M      0     7   0       0       -       0       0       -        -       8   12000       0       -       0",
        ];
        assert_eq!(lines[1..4], expected, "{lines:#?}");
        assert!(lines[5].starts_with("┌ db "), "{lines:#?}");
    }

    #[test]
    fn a_guest_with_a_store_has_columns_for_it() {
        let mut samples = samples();
        for (sample, [out, waited]) in samples.iter_mut().zip([[10, 0], [310, 750_000]]) {
            let figures = [
                ("pages.limit", 4096),
                ("pages.resident", 3584),
                ("pages.working_set", 20_000),
                ("swap.pages_out", out),
                ("swap.pages_read", 7 + out / 20),
                ("swap.pages_ahead", out / 20),
                ("swap.waited", waited),
            ];
            sample.guests[0].figures.extend(figures.map(|(key, value)| (key.to_owned(), value)));
        }
        let [before, now] = samples;
        let mut terminal = Terminal::new(TestBackend::new(80, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &Rates::between(Some(&before), now), 0)).unwrap();
        let text = terminal.backend().to_string();
        for line in [
            "GUEST STATE     CPU % STOLEN MEMORY RESIDENT    WSS   OUT/s    IN/s   WAIT",
            "web   running     0.2      -   512M      14M    78M     200      20   50.0",
            "db    stopped     0.0      -   512M        -      -       -       -      -",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }

    #[test]
    fn a_small_screen_is_no_panic() {
        for (width, height) in [(1, 1), (20, 3), (80, 2), (300, 100)] {
            screen(width, height, 7);
        }
    }

    #[test]
    fn a_long_name_has_room() {
        let [before, mut now] = samples();
        now.guests[1].name = "database-server".to_owned();
        let rates = Rates::between(Some(&before), now);
        let mut terminal = Terminal::new(TestBackend::new(80, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &rates, 0)).unwrap();
        let text = terminal.backend().to_string();
        assert!(text.contains("database-server stopped "), "{text}");
        assert!(text.contains("web             running "), "{text}");
    }

    #[test]
    fn sizes_have_few_digits() {
        let texts = [0, 9999, 10 << 10, (10 << 20) - 1, 1929 << 20, 10 << 30].map(bytes);
        assert_eq!(texts, ["0", "9999", "10K", "10239K", "1929M", "10G"]);
    }

    #[test]
    fn figures_are_short() {
        let texts =
            [None, Some(0.0), Some(1.25), Some(99.9), Some(99_999.0), Some(123_456.0), Some(4.56e6), Some(1e13)];
        let expected = ["-", "0", "1.2", "99.9", "99999", "123k", "4.6M", "10.0T"];
        assert_eq!(texts.map(short), expected);
    }
}
