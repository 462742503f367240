// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which record may follow which. Writer and reader ask the same code, so a writer cannot write what a reader refuses.

use alloc::collections::BTreeSet;

use zerocopy::little_endian::U64;

use super::hello::Hello;
use super::message::Message;
use super::name::Name;
use super::slots::{Slot, SlotError, Slots};
use super::wire::{SECTIONS_MAX, WHOLE};

/// A record that does not belong where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The record belongs elsewhere.
    #[error("{record} {progress}")]
    Misplaced {
        /// The record.
        record: &'static str,
        /// Where it is.
        progress: Progress,
    },
    /// Rounds are numbered from 1, without a gap.
    #[error("round {found}, where round {wanted} was to come")]
    Round {
        /// The round's number.
        found: u64,
        /// The number that was to come.
        wanted: u64,
    },
    /// The round's end does not have its number of pages.
    #[error("the end of a round says {said} pages, and {came} came")]
    RoundEnd {
        /// What its end says.
        said: u64,
        /// How many came.
        came: u64,
    },
    /// The first round of a migration with one stream has every page.
    #[error("the first round has {came} of the guest's {all} pages")]
    FirstRound {
        /// How many came.
        came: u64,
        /// The guest's.
        all: u64,
    },
    /// A memslot or a page is wrong.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// Absent pages come twice, or not in ascending order.
    #[error("absent pages of memslot {slot} from {page:#x} on, which are not after those before them")]
    Absent {
        /// The memslot.
        slot: u16,
        /// The first page.
        page: u64,
    },
    /// A section came already, or there are too many.
    #[error("section {name}, instance {instance}, comes twice or is one too many")]
    Section {
        /// Its name.
        name: Name,
        /// Its instance.
        instance: u32,
    },
    /// A part of a section is not the next one, is empty, or has more bytes than the section.
    #[error("a section's part at {offset} with {length} bytes, where {wanted} was to come and {left} are left")]
    Part {
        /// Its place in the section.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// The place that was to come.
        wanted: u64,
        /// The bytes that are left of the section.
        left: u64,
    },
}

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Before anything.
    Start,
    /// After the hello.
    Greeted,
    /// Between rounds and sections, and the guest was not yet sent as it is when stopped.
    Running,
    /// In a round.
    Round,
    /// In a section.
    Section,
    /// Between sections, after the round of the stopped guest.
    Stopped,
    /// After the end.
    Ended,
    /// After the source has said that it keeps the guest.
    Withdrawn,
    /// In a stream from target to source, which has messages only.
    Answers,
}

impl core::fmt::Display for Progress {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::Start => "at the start",
            Self::Greeted => "right after the hello",
            Self::Running => "before the stopped guest's round",
            Self::Round => "in a round",
            Self::Section => "in a section",
            Self::Stopped => "after the stopped guest's round",
            Self::Ended => "after the end",
            Self::Withdrawn => "after the withdrawal",
            Self::Answers => "among the target's messages",
        })
    }
}

/// How far a stream is.
#[derive(Debug)]
pub(super) struct Order {
    version: u32,
    progress: Progress,
    /// Whether absent pages follow the end. The memslot's index and the page from which on the next may be.
    absent: Option<(usize, u64)>,
    hello: Option<Hello>,
    slots: Slots,
    /// The number of the last round that began, and whether it is the stopped guest's.
    round: u64,
    stopped: bool,
    sections: BTreeSet<(Name, u32)>,
    /// The section's bytes so far, and its size.
    section: (u64, u64),
}

impl Order {
    pub fn new(version: u32) -> Self {
        let (absent, slots, sections) = (None, Slots::default(), BTreeSet::new());
        let progress = Progress::Start;
        Self { version, progress, absent, hello: None, slots, round: 0, stopped: false, sections, section: (0, 0) }
    }

    /// Whether a stream may stop here.
    pub fn may_stop(&self) -> bool {
        matches!(self.progress, Progress::Ended | Progress::Withdrawn | Progress::Answers)
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn set_version(&mut self, version: u32) {
        self.version = version;
    }

    pub fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    pub fn memslots(&self) -> &[Slot] {
        self.slots.slots()
    }

    pub fn greet(&mut self, hello: Hello) -> Result<&Hello, OrderError> {
        self.at(&[Progress::Start], "a hello")?;
        self.progress = Progress::Greeted;
        Ok(self.hello.insert(hello))
    }

    pub fn slots(&mut self, slots: &[Slot]) -> Result<(), OrderError> {
        self.at(&[Progress::Greeted], "memslots")?;
        if let Some(hello) = &self.hello {
            self.slots = Slots::new(slots, hello.memory >> hello.page_shift, 1 << (hello.ipa_bits - hello.page_shift))?;
        }
        self.progress = Progress::Running;
        Ok(())
    }

    /// Begins a round; returns its number.
    pub fn round(&mut self, number: Option<u64>, stopped: bool) -> Result<u64, OrderError> {
        self.at(&[Progress::Running], "a round")?;
        let wanted = self.round + 1;
        if let Some(found) = number.filter(|&found| found != wanted) {
            return Err(OrderError::Round { found, wanted });
        }
        (self.round, self.stopped, self.progress) = (wanted, stopped, Progress::Round);
        self.slots.begin();
        Ok(wanted)
    }

    pub fn pages(&mut self, slot: u16, page: u64, count: u64) -> Result<(), OrderError> {
        match self.progress {
            Progress::Ended if self.absent.is_some() => {}
            _ => self.at(&[Progress::Round], "a page")?,
        }
        Ok(self.slots.note(slot, page, count)?)
    }

    /// Ends a round; returns its pages.
    pub fn end_round(&mut self, said: Option<u64>) -> Result<u64, OrderError> {
        self.at(&[Progress::Round], "a round's end")?;
        let came = self.slots.count();
        if let Some(said) = said.filter(|&said| said != came) {
            return Err(OrderError::RoundEnd { said, came });
        }
        let alone = self.hello.as_ref().filter(|hello| hello.streams == 1);
        let all = alone.map_or(came, |hello| hello.memory >> hello.page_shift);
        // With absent pages, the receiver counts over rounds and absent pages.
        if self.version == WHOLE && self.round == 1 && came != all {
            return Err(OrderError::FirstRound { came, all });
        }
        self.progress = self.between();
        Ok(came)
    }

    pub fn section(&mut self, name: Name, instance: u32, size: u64) -> Result<(), OrderError> {
        self.at(&[Progress::Running, Progress::Stopped], "a section")?;
        if self.sections.len() >= SECTIONS_MAX || !self.sections.insert((name, instance)) {
            return Err(OrderError::Section { name, instance });
        }
        self.section = (0, size);
        self.progress = if size > 0 { Progress::Section } else { self.between() };
        Ok(())
    }

    /// Notes a part of a section; returns its place in the section.
    pub fn part(&mut self, offset: Option<u64>, length: u64) -> Result<u64, OrderError> {
        self.at(&[Progress::Section], "a section's part")?;
        let (wanted, left) = (self.section.0, self.section.1 - self.section.0);
        let offset = offset.unwrap_or(wanted);
        if offset != wanted || length == 0 || length > left {
            return Err(OrderError::Part { offset, length, wanted, left });
        }
        self.section.0 += length;
        if length == left {
            self.progress = self.between();
        }
        Ok(wanted)
    }

    pub fn end(&mut self) -> Result<(), OrderError> {
        self.at(&[Progress::Stopped], "an end")?;
        self.progress = Progress::Ended;
        // Each absent page comes at most once.
        self.slots.begin();
        Ok(())
    }

    /// Notes absent pages: those that follow the source's end, or those that the target says it lacks. A target's stream
    /// has no memslots, so its reader checks only the bitmap's place.
    pub fn absent(&mut self, slot: u16, page: u64, words: &[U64]) -> Result<(), OrderError> {
        if let Progress::Start | Progress::Answers = self.progress {
            self.progress = Progress::Answers;
            let whole = page.is_multiple_of(64) && !words.is_empty();
            let count = words.len() as u64 * 64;
            return if whole { Ok(()) } else { Err(SlotError::NoPage { slot, page, count }.into()) };
        }
        self.at(&[Progress::Stopped], "absent pages")?;
        let index = self.slots.check_bits(slot, page, words)?;
        if self.absent.is_some_and(|next| (index, page) < next) {
            return Err(OrderError::Absent { slot, page });
        }
        self.absent = Some((index, page + 64 * words.len() as u64));
        Ok(())
    }

    /// Notes a request of a target for pages.
    pub fn request(&mut self, slot: u16, page: u64, count: u32) -> Result<(), OrderError> {
        self.at(&[Progress::Start, Progress::Answers], "a request")?;
        if count == 0 || page.checked_add(count.into()).is_none() {
            return Err(SlotError::NoPage { slot, page, count: count.into() }.into());
        }
        self.progress = Progress::Answers;
        Ok(())
    }

    /// Notes that a link is back: absent pages follow the memslots.
    pub fn resume(&mut self) -> Result<(), OrderError> {
        if self.round > 0 || !self.sections.is_empty() {
            return Err(OrderError::Misplaced { record: "a resumption", progress: self.progress });
        }
        self.at(&[Progress::Running], "a resumption")?;
        (self.progress, self.absent) = (Progress::Ended, Some((0, 0)));
        Ok(())
    }

    pub fn message(&mut self, message: &Message) -> Result<(), OrderError> {
        match message {
            Message::Withdrawn(_) => {
                let places = [Progress::Greeted, Progress::Running, Progress::Round, Progress::Stopped];
                self.at(&places, "a withdrawal")?;
                self.progress = Progress::Withdrawn;
            }
            Message::Taken(_) if self.progress == Progress::Ended => {}
            _ => {
                self.at(&[Progress::Start, Progress::Answers], "a message of a target")?;
                self.progress = Progress::Answers;
            }
        }
        Ok(())
    }

    fn between(&self) -> Progress {
        if self.stopped { Progress::Stopped } else { Progress::Running }
    }

    fn at(&self, places: &[Progress], record: &'static str) -> Result<(), OrderError> {
        if places.contains(&self.progress) {
            Ok(())
        } else {
            Err(OrderError::Misplaced { record, progress: self.progress })
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// A stream of a guest with two memslots, at its last round's end.
    fn stopped() -> Order {
        let mut order = Order::new(2);
        let hello = Hello {
            migration: [0; 16],
            stream: 0,
            streams: 1,
            model: Name::new("any").unwrap(),
            page_shift: 12,
            ipa_bits: 40,
            vcpus: 1,
            memory: 256 << 12,
            features: Vec::new(),
        };
        order.greet(hello).unwrap();
        let slots = [(3, 0), (4, 128)].map(|(number, first)| Slot { number, read_only: false, first, pages: 128 });
        order.slots(&slots).unwrap();
        order.round(None, true).unwrap();
        order.end_round(None).unwrap();
        order
    }

    /// They may follow each other at once, and none comes twice.
    #[test]
    fn bitmaps_of_absent_pages_are_in_order() {
        let words = [U64::from(1); 2];
        let mut order = stopped();
        assert_eq!(order.absent(3, 0, &words[..1]), Ok(()));
        assert_eq!(order.absent(3, 0, &words), Err(OrderError::Absent { slot: 3, page: 0 }));
        assert_eq!(order.absent(3, 64, &words[..1]), Ok(()), "where the last one ended");
        assert_eq!(order.absent(4, 0, &words), Ok(()));
        assert_eq!(order.absent(4, 64, &words[..1]), Err(OrderError::Absent { slot: 4, page: 64 }));
        assert_eq!(order.absent(3, 64, &words[..1]), Err(OrderError::Absent { slot: 3, page: 64 }));
    }

    #[test]
    fn a_target_lacks_whole_words_of_pages() {
        let mut order = Order::new(2);
        assert_eq!(order.absent(3, 64, &[U64::from(1)]), Ok(()));
        for (page, words) in [(64, 0), (65, 1)] {
            let error = SlotError::NoPage { slot: 3, page, count: 64 * words as u64 };
            assert_eq!(order.absent(3, page, &[U64::from(1)][..words]), Err(error.into()));
        }
    }

    #[test]
    fn a_section_may_have_one_byte() {
        let (mut order, name) = (stopped(), Name::new("x").unwrap());
        assert_eq!(order.section(name, 0, 1), Ok(()));
        assert_eq!((order.part(None, 1), order.section(name, 1, 0), order.end()), (Ok(0), Ok(()), Ok(())));
    }
}
