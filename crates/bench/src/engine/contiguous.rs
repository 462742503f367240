// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold bench contiguous`: how many TLB entries a guest's memory takes with the contiguous hint and without it, and how
//! often a modelled TLB misses.
//!
//! Invariant: the tables are the engine's, and each access finds its entry in them. Only the TLB is a model.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use anyhow::ensure;
use serde::Serialize;
use twofold_stage2::{Access, Attributes, Contiguous, Granule, Ipa, Kib4, Kib16, Kib64, Leaf, Level, group_length};

use super::guest::{GuestTables, Start};
use super::platform::Counts;
use crate::options::ContiguousOptions;
use crate::output;
use crate::report::table::table;

/// Runs `twofold bench contiguous`.
pub fn command(options: &ContiguousOptions) -> anyhow::Result<()> {
    let mut rows = rows::<Kib4>("4 KiB", options)?;
    rows.extend(self::rows::<Kib16>("16 KiB", options)?);
    rows.extend(self::rows::<Kib64>("64 KiB", options)?);
    output::line(&shown(&rows, options))?;
    options.json.as_deref().map_or(Ok(()), |path| output::json(path, &rows))
}

/// One way to map the guest's memory.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    granule: &'static str,
    /// The kind of leaf.
    mapped_by: &'static str,
    /// The bytes that a TLB entry translates.
    entry_bytes: u64,
    /// The TLB entries that all of the guest's memory takes.
    entries: u64,
    /// Misses of the accesses, modelled.
    modelled_misses: u64,
}

fn rows<G: Granule>(name: &'static str, options: &ContiguousOptions) -> anyhow::Result<Vec<Row>> {
    let attributes = Attributes::ram(Access::ALL);
    let (pages, blocks) = (Start::Pages(attributes), Start::Blocks(Level::L2, attributes));
    let mut rows = vec![
        row::<G>((name, "pages"), pages, options)?,
        row::<Contiguous<G>>((name, "groups of pages"), pages, options)?,
        row::<G>((name, "blocks"), blocks, options)?,
    ];
    // A group of blocks has to fit into the memory.
    let group = group_length::<Contiguous<G>>(Level::L2) as u64 * G::default().span(Level::L2);
    if group <= options.size.bytes() {
        rows.push(row::<Contiguous<G>>((name, "groups of blocks"), blocks, options)?);
    }
    Ok(rows)
}

fn row<G: Granule>(
    (granule, mapped_by): (&'static str, &'static str),
    start: Start,
    options: &ContiguousOptions,
) -> anyhow::Result<Row> {
    let size = options.size.bytes();
    let mut guest = GuestTables::<G, false>::new(super::arena::<G>(size)?, Rc::new(Counts::default()), size, start)?;
    let range = guest.range();
    let (stage2, _) = guest.parts()?;
    let entry_at = |ipa: Ipa| stage2.look_up(ipa).map(entry);
    let Some((_, entry_bytes)) = entry_at(range.start) else { anyhow::bail!("nothing is mapped") };
    let entries = size / entry_bytes;
    for number in 0..entries {
        let at = range.start + number * entry_bytes;
        ensure!(entry_at(at) == Some((at, entry_bytes)), "the entry at {at} is of another size");
    }
    let mut tlb = Tlb::new(options.entries as usize);
    let mut random = Random(1);
    let mut modelled_misses = 0;
    for number in 0..2 * u64::from(options.accesses) {
        let Some((at, _)) = entry_at(range.start + random.next() % size) else { anyhow::bail!("a page is not mapped") };
        let missed = !tlb.access(at);
        modelled_misses += u64::from(missed && number >= u64::from(options.accesses));
    }
    Ok(Row { granule, mapped_by, entry_bytes, entries, modelled_misses })
}

/// The TLB entry for a leaf: the first address that it translates, and its size. A group is one entry.
fn entry<G: Granule>(leaf: Leaf<G>) -> (Ipa, u64) {
    let length = if leaf.descriptor.is_contiguous() { group_length::<G>(leaf.level) as u64 } else { 1 };
    let size = length * leaf.size();
    (leaf.ipa.align_down(size), size)
}

/// A fully associative TLB that drops the entry that was not used for the longest time.
struct Tlb {
    most: usize,
    time: u64,
    /// When each entry was used last.
    used: HashMap<Ipa, u64>,
    /// The entries by that time.
    oldest: BTreeMap<u64, Ipa>,
}

impl Tlb {
    fn new(most: usize) -> Self {
        Self { most, time: 0, used: HashMap::new(), oldest: BTreeMap::new() }
    }

    /// Uses an entry. Returns whether the TLB had it.
    fn access(&mut self, entry: Ipa) -> bool {
        self.time += 1;
        let before = self.used.insert(entry, self.time);
        if let Some(before) = before {
            self.oldest.remove(&before);
        } else if self.used.len() > self.most
            && let Some((_, dropped)) = self.oldest.pop_first()
        {
            self.used.remove(&dropped);
        }
        self.oldest.insert(self.time, entry);
        before.is_some()
    }
}

/// Random numbers (xorshift64*), the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }
}

fn shown(rows: &[Row], options: &ContiguousOptions) -> String {
    let header = ["granule", "mapped by", "an entry's bytes", "entries for all", "misses (modelled)"];
    let cells = rows.iter().map(|row| {
        let share = 100.0 * row.modelled_misses as f64 / f64::from(options.accesses);
        let bytes = match row.entry_bytes {
            bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes => format!("{} KiB", bytes >> 10),
        };
        vec![row.granule.to_owned(), row.mapped_by.to_owned(), bytes, row.entries.to_string(), format!("{share:.1} %")]
    });
    format!(
        "{}\n\n{} accesses to random addresses in {} MiB; a TLB of {} entries, modelled: it holds a group as one entry",
        table(&header, cells, 2),
        options.accesses,
        options.size.bytes() >> 20,
        options.entries,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tlb_drops_what_was_not_used_for_the_longest_time() {
        let mut tlb = Tlb::new(2);
        let [a, b, c] = [0, 1, 2].map(Ipa::new);
        assert_eq!([a, b, a, c, a, b].map(|entry| tlb.access(entry)), [false, false, true, false, true, false]);
    }

    /// 128 pages are one entry, so as many less miss.
    #[test]
    fn a_group_is_one_entry() {
        let size = "1G".parse().unwrap();
        let options = ContiguousOptions { size, entries: 256, accesses: 1000, json: None };
        let rows = rows::<Kib16>("16 KiB", &options).unwrap();
        let entries: Vec<_> = rows.iter().map(|row| (row.mapped_by, row.entry_bytes, row.entries)).collect();
        let expected = [
            ("pages", 16 << 10, 1 << 16),
            ("groups of pages", 2 << 20, 512),
            ("blocks", 32 << 20, 32),
            ("groups of blocks", 1 << 30, 1),
        ];
        assert_eq!(entries, expected);
        let misses: Vec<_> = rows.iter().map(|row| row.modelled_misses).collect();
        assert!(misses[0] > 900 && (300..700).contains(&misses[1]) && misses[2..] == [0, 0], "{misses:?}");
        assert!(shown(&rows, &options).contains("modelled"));
    }
}
