// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plain-text tables.
//!
//! Invariant: a table has no colours and no wrapped lines, so it is the same on every terminal.

use std::ops::RangeBounds;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// Returns a table of words.
pub fn of_words(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    with_numbers(header, rows, 0..0)
}

/// Returns a table in which the `numbers` among the columns are aligned right, and the others left.
pub fn with_numbers(
    header: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    numbers: impl RangeBounds<usize>,
) -> String {
    let mut table = Table::new();
    // No wrapping, so that the terminal's width does not change a table.
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Formats a number with commas: 1234567 is 1,234,567.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (7_672, "7,672"), (202_700_000, "202,700,000")];
        for (number, text) in cases {
            assert_eq!(thousands(number), text);
        }
    }
}
