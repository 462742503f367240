// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which places are in use, and where in the file each one is.
//!
//! A place has a number, which is never used again, and room for a whole page is promised to it. Where it is in the file
//! is decided when it is written: pages that are written together are together.
//!
//! Invariant: free sectors are never fewer than those that are promised to places without an extent, unless the file
//! was found to be smaller. So writing a page finds room.

use std::collections::{BTreeMap, HashMap};

use twofold_memory::swap::Place;
use twofold_stage2::Ipa;

use super::extents::{Extent, Extents, PAGE_SECTORS, SECTOR};
use super::packed::Form;

#[derive(Debug)]
pub(super) struct Places {
    places: HashMap<Place, Held>,
    /// The places that hold a page, by its address.
    pages: BTreeMap<Ipa, Place>,
    free: Extents,
    sectors: u64,
    /// Sectors that are promised to places that are not written.
    promised: u64,
    last: u64,
    /// The first sector behind all that were ever written.
    written: u64,
}

#[derive(Debug)]
struct Held {
    page: Ipa,
    room: Room,
}

/// What a place has of the file.
#[derive(Debug)]
enum Room {
    /// A page's sectors, somewhere.
    Promised,
    /// Those that it is being written to.
    Taken,
    /// Those that hold it.
    Stored(Stored),
}

/// Where a page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// At least one.
    pub(super) extents: Vec<Extent>,
    pub(super) form: Form,
}

impl Stored {
    /// The byte at which it begins.
    pub(super) fn offset(&self) -> u64 {
        self.extents[0].start * SECTOR
    }
}

impl Places {
    pub(super) fn new(pages: u64) -> Self {
        let sectors = pages.saturating_mul(PAGE_SECTORS);
        let free = Extents::new(sectors);
        Self { places: HashMap::new(), pages: BTreeMap::new(), free, sectors, promised: 0, last: 0, written: 0 }
    }

    /// How many pages there is room for, and how much of that is in use.
    pub(super) fn room(&self) -> (u64, u64) {
        let used = self.sectors - self.free.count().saturating_sub(self.promised);
        (self.sectors / PAGE_SECTORS, used.div_ceil(PAGE_SECTORS))
    }

    pub(super) fn count(&self) -> u64 {
        self.places.len() as u64
    }

    pub(super) fn bytes_used(&self) -> u64 {
        (self.sectors - self.free.count()) * SECTOR
    }

    /// A place for this page; `None` if the store is full.
    pub(super) fn add(&mut self, page: Ipa) -> Option<Place> {
        if self.free.count() < self.promised + PAGE_SECTORS {
            return None;
        }
        self.promised += PAGE_SECTORS;
        self.last += 1;
        let place = Place::new(self.last);
        self.places.insert(place, Held { page, room: Room::Promised });
        Some(place)
    }

    /// Forgets a place.
    pub(super) fn remove(&mut self, place: Place) {
        let Some(held) = self.places.remove(&place) else { return };
        match held.room {
            Room::Promised => self.promised -= PAGE_SECTORS,
            Room::Taken => {}
            Room::Stored(stored) => self.free(stored.extents),
        }
        if self.pages.get(&held.page) == Some(&place) {
            self.pages.remove(&held.page);
        }
    }

    /// Room for pages in these forms: in a row if there is such an extent, else in as few rows as halving gives. `None` for
    /// a page that has none, which is only so in a file that is smaller than it should be.
    pub(super) fn take(&mut self, pages: &[(Place, Form)]) -> Vec<Option<Vec<Extent>>> {
        let sectors = pages.iter().map(|(_, form)| form.sectors()).sum();
        if let Some(all) = self.free.take(sectors) {
            let mut at = all.start;
            let part = |(place, form): &(Place, Form)| {
                let start = at;
                at += form.sectors();
                self.set_room(*place, Room::Taken);
                Some(Vec::from([Extent { start, end: at }]))
            };
            return pages.iter().map(part).collect();
        }
        if let [(place, form)] = pages {
            let pieces = self.free.take_pieces(form.sectors());
            if pieces.is_some() {
                self.set_room(*place, Room::Taken);
            }
            return vec![pieces];
        }
        let (first, second) = pages.split_at(pages.len() / 2);
        let mut taken = self.take(first);
        taken.extend(self.take(second));
        taken
    }

    /// Takes back room of a place that could not be written.
    pub(super) fn give(&mut self, place: Place, extents: Vec<Extent>) {
        self.free(extents);
        // Another thread may have found meanwhile that the file ends before them.
        self.free.cut(self.sectors);
        self.set_room(place, Room::Promised);
    }

    fn free(&mut self, extents: Vec<Extent>) {
        extents.into_iter().for_each(|extent| self.free.give(extent));
    }

    fn set_room(&mut self, place: Place, room: Room) {
        let Some(held) = self.places.get_mut(&place) else { return };
        let promised = |room: &Room| if matches!(room, Room::Promised) { PAGE_SECTORS } else { 0 };
        self.promised += promised(&room);
        self.promised -= promised(&held.room);
        held.room = room;
    }

    /// The place is written.
    pub(super) fn store(&mut self, place: Place, stored: Stored) {
        stored.extents.iter().for_each(|extent| self.written = self.written.max(extent.end));
        self.sectors = self.sectors.max(self.written);
        if let Some(held) = self.places.get(&place) {
            self.pages.insert(held.page, place);
        }
        self.set_room(place, Room::Stored(stored));
    }

    /// Where the place is, if it is written.
    pub(super) fn find(&self, place: Place) -> Option<&Stored> {
        match &self.places.get(&place)?.room {
            Room::Stored(stored) => Some(stored),
            Room::Promised | Room::Taken => None,
        }
    }

    /// The places of the pages behind `page`, up to `count` pages away.
    pub(super) fn behind(&self, page: Ipa, count: u64) -> Vec<(Ipa, Place)> {
        let (Some(first), Some(end)) = (page.checked_add(4096), page.checked_add((count + 1) * 4096)) else {
            return Vec::new();
        };
        self.pages.range(first..end).map(|(page, place)| (*page, *place)).collect()
    }

    /// The file has no room behind what was written. Returns for how many pages it has.
    pub(super) fn cut(&mut self) -> u64 {
        self.free.cut(self.written);
        self.sectors = self.written;
        self.sectors / PAGE_SECTORS
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::{PAGE, pack};
    use super::*;

    /// One thread finds that the file has no more room while another writes behind that, which fails for another reason.
    #[test]
    fn room_behind_the_end_of_the_file_does_not_come_back() {
        let mut places = Places::new(4);
        let form = pack(&[7; PAGE], false, &mut Vec::new());
        let [first, second] = [0, 1].map(|page| places.add(Ipa::new(page * PAGE as u64)).unwrap());
        let mut take = |place| places.take(&[(place, form)]).remove(0).unwrap();
        let [before, behind] = [take(first), take(second)];
        places.give(first, before);
        assert_eq!(places.cut(), 0);
        places.give(second, behind);
        assert_eq!((places.room(), places.bytes_used()), ((0, 0), 0));
        [first, second].into_iter().for_each(|place| places.remove(place));
        assert_eq!(places.add(Ipa::new(0)), None);
    }

    fn add(places: &mut Places, page: u64) -> Place {
        places.add(Ipa::new(page * PAGE as u64)).unwrap()
    }

    fn store(places: &mut Places, place: Place, form: Form) {
        let extents = places.take(&[(place, form)]).remove(0).unwrap();
        places.store(place, Stored { extents, form });
    }

    #[test]
    fn a_promise_ends_with_its_place() {
        let mut places = Places::new(1);
        let place = add(&mut places, 0);
        places.remove(place);
        assert_eq!(places.room(), (1, 0));
        add(&mut places, 0);
    }

    #[test]
    fn a_page_is_found_behind_another_at_its_newest_place() {
        let mut places = Places::new(4);
        let form = pack(&[7; PAGE], false, &mut Vec::new());
        let (old, new) = (add(&mut places, 1), add(&mut places, 1));
        store(&mut places, old, form);
        store(&mut places, new, form);
        places.remove(old);
        assert_eq!(places.behind(Ipa::new(0), 1), [(Ipa::new(PAGE as u64), new)]);
        places.remove(new);
        assert_eq!(places.behind(Ipa::new(0), 1), []);
    }

    #[test]
    fn a_file_that_is_cut_keeps_what_was_written() {
        let mut places = Places::new(4);
        let form = pack(&[7; PAGE], false, &mut Vec::new());
        let [first, second, third] = [0, 1, 2].map(|page| add(&mut places, page));
        store(&mut places, first, form);
        store(&mut places, second, form);
        assert_eq!(places.cut(), 2);
        assert_eq!(places.take(&[(third, form)]), [None]);
        // The place that got no room still has its promise.
        places.remove(first);
        assert_eq!(places.add(Ipa::new(0)), None);
    }

    #[test]
    fn a_page_in_pieces_uses_up_its_promise() {
        let mut places = Places::new(3);
        let whole = pack(&[7; PAGE], false, &mut Vec::new());
        let small = pack(&[7; PAGE], true, &mut Vec::new());
        assert_eq!(small.sectors(), 1);
        let [first, second, third] = [0, 1, 2].map(|page| add(&mut places, page));
        store(&mut places, first, whole);
        store(&mut places, second, small);
        assert_eq!(places.add(Ipa::new(0)), None);
        assert_eq!(places.room(), (3, 3));
        places.remove(first);
        let other = add(&mut places, 3);
        store(&mut places, other, small);
        assert_eq!(places.take(&[(third, whole)])[0].as_deref(), Some(std::slice::from_ref(&(9..17))));
        let last = add(&mut places, 4);
        assert_eq!(places.take(&[(last, whole)]), [Some(vec![1..8, 17..18])]);
        assert_eq!(places.room(), (3, 3));
        // What two small pages leave is promised again, since no promise is left.
        [second, other].into_iter().for_each(|place| places.remove(place));
        add(&mut places, 5);
    }
}
