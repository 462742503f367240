// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table for a terminal: no lines, words to the left, figures to the right.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// Formats a table whose first `words` columns are text, and the others numbers.
pub fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>, words: usize) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(words) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
