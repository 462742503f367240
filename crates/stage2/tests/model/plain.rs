// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plain model: a map from addresses to pages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub pa: Pa,
    pub attributes: Attributes,
}

impl Page {
    /// Whether mapping that frame would change no more than a relax may change.
    pub fn is_mapped_as(&self, pa: Pa, new: &Attributes) -> bool {
        let Attributes { memory, shareability, .. } = self.attributes;
        (self.pa, memory, shareability) == (pa, new.memory, new.shareability)
    }
}

/// The page at each key. No operation ever makes a difference between two neighbouring keys. So one entry stands for
/// all pages up to the next key: the page at its key, and the pages after it with the frames after it.
pub struct Model {
    pub pages: BTreeMap<u64, Option<Page>>,
    pub end: u64,
}

impl Model {
    /// The keys: the ends of ranges, and the ends of the blocks that contain them.
    pub fn new(end: u64, operations: &[Operation]) -> Self {
        let mut pages = BTreeMap::from([(0, None)]);
        for operation in operations {
            for at in operation.lines(end) {
                for size in [KIB_4, MIB_2, GIB] {
                    pages.extend([(at & !(size - 1), None), (at.next_multiple_of(size), None)]);
                }
            }
        }
        pages.retain(|at, _| *at < end);
        Self { pages, end }
    }

    /// The page that maps `ipa`.
    pub fn at(&self, ipa: Ipa) -> Option<Page> {
        let (start, page) = self.pages.range(..=ipa.raw()).next_back().unwrap();
        page.map(|page| Page { pa: page.pa + (ipa.raw() - start), ..page })
    }

    pub fn update(&mut self, range: Range<u64>, change: impl Fn(u64, &mut Option<Page>)) {
        assert!(self.pages.contains_key(&range.start), "no line at {:#x}", range.start);
        assert!(range.end == self.end || self.pages.contains_key(&range.end), "no line at {:#x}", range.end);
        self.pages.range_mut(range).for_each(|(at, page)| change(*at, page));
    }

    pub fn update_mapped(&mut self, range: Range<u64>, change: impl Fn(&mut Attributes)) {
        self.update(range, |_, page| {
            if let Some(page) = page {
                change(&mut page.attributes);
            }
        });
    }

    /// The number of bytes mapped in `range`.
    pub fn mapped(&self, range: Range<u64>) -> u64 {
        let ends = self.pages.keys().skip(1).copied().chain([self.end]);
        let spans = self.pages.iter().zip(ends);
        spans
            .filter(|((start, page), _)| range.contains(start) && page.is_some())
            .map(|((start, _), end)| end - start)
            .sum()
    }

    /// Checks that the tables hold exactly this, and that the engine reads them alike.
    pub fn check(&self, guest: &Guest, tables: &Scan) {
        let features = guest.stage2.features();
        let mut pages = self.pages.iter().map(|(at, page)| (Ipa::new(*at), *page)).peekable();
        let mut last = pages.next().unwrap();
        for leaf in &tables.leaves {
            let says = |(start, page): (Ipa, Option<Page>)| {
                let page = page.unwrap_or_else(|| panic!("{leaf:x?}, but {start} is not mapped"));
                assert_eq!(leaf.pa() + start.raw(), page.pa + leaf.ipa.raw(), "{start} is elsewhere, {leaf:x?}");
                assert_eq!(attributes(leaf, features), page.attributes, "{start} in {leaf:x?}");
            };
            while let Some(next) = pages.next_if(|(at, _)| *at <= leaf.ipa) {
                last = next;
            }
            says(last);
            while let Some(next) = pages.next_if(|(at, _)| *at < leaf.end()) {
                last = next;
                says(last);
            }
        }
        assert_eq!(tables.leaves.iter().map(Leaf::span).sum::<u64>(), self.mapped(0..self.end));
        for ipa in self.pages.keys().map(|at| Ipa::new(*at)) {
            let found = guest.stage2.look_up(ipa).map(|leaf| (leaf.ipa, leaf.level.raw(), leaf.descriptor.raw()));
            assert_eq!(found, guest.walk(ipa).map(|leaf| (leaf.ipa, leaf.level, leaf.raw)));
        }
    }
}

fn attributes(leaf: &Leaf, features: &Features) -> Attributes {
    assert!(features.execute_per_el || leaf.raw >> 53 & 1 == 0, "XN[0] of {leaf:x?} is reserved without FEAT_XNX");
    Attributes {
        memory: leaf.memory(features.forced_write_back),
        shareability: leaf.shareability(),
        access: leaf.access(),
        accessed: leaf.accessed(),
        dirty_by_hardware: leaf.dirty_by_hardware(),
        software: leaf.software(),
    }
}
