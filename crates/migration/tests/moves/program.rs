// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's program: it writes words, and checks before each write that the word is what it wrote last.

use twofold_machine::program::{Ended, Exit, Instructions, Program};

use crate::guest::{PAGE, word_pages};

/// The program of one vCPU. All its state is here, and in the words that it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub vcpu: u64,
    /// What this vCPU wrote to its word of each page.
    pub wrote: Vec<u64>,
    /// Pages that most writes go to.
    pub hot: u64,
    /// The percentage of writes that go there.
    pub hot_percent: u64,
    pub random: u64,
    /// Writes that are left of this run.
    pub budget: u64,
    pub done: u64,
    /// Whether the next word was checked, and is to be written now.
    checked: bool,
    /// Whether words are only checked.
    pub reads: bool,
}

impl Work {
    pub fn new(vcpu: u64, (hot, hot_percent): (u64, u64)) -> Self {
        let wrote = vec![0; word_pages() as usize];
        Self { vcpu, wrote, hot, hot_percent, random: 7 + vcpu, budget: 0, done: 0, checked: false, reads: false }
    }

    /// The address of this vCPU's word in a page.
    fn word(&self, page: u64) -> u64 {
        crate::guest::address_of(page) + (page * 72 + 8 * self.vcpu) % PAGE
    }

    /// The page of the next write, and the value.
    pub fn next(&self) -> (u64, u64) {
        let mut draw = crate::Random(self.random);
        let hot = draw.below(100) < self.hot_percent;
        let page = if hot { draw.below(self.hot) } else { draw.below(word_pages()) };
        let value = if draw.below(8) == 0 { 0 } else { draw.below(u64::MAX) };
        (page, value)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        assert_eq!(self.budget, 0);
        let numbers = [
            self.vcpu,
            self.hot,
            self.hot_percent,
            self.random,
            self.done,
            u64::from(self.checked),
            u64::from(self.reads),
        ];
        numbers.iter().chain(&self.wrote).flat_map(|number| number.to_le_bytes()).collect()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (&[vcpu, hot, hot_percent, random, done, checked, reads], wrote) = words.split_first_chunk()?;
        let wrote = (wrote.len() as u64 == word_pages()).then(|| wrote.to_vec())?;
        Some(Self { vcpu, wrote, hot, hot_percent, random, budget: 0, done, checked: checked == 1, reads: reads == 1 })
    }
}

impl Program for Work {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.budget > 0 {
            let (page, value) = self.next();
            if !self.checked {
                let found = cpu.load(self.word(page))?;
                assert_eq!(found, self.wrote[page as usize], "vCPU {}: page {page} is not as it was left", self.vcpu);
                self.checked = true;
            }
            if !self.reads {
                cpu.store(self.word(page), value)?;
                self.wrote[page as usize] = value;
            }
            self.checked = false;
            self.random = crate::Random(self.random).next();
            (self.budget, self.done) = (self.budget - 1, self.done + 1);
        }
        Ok(Ended)
    }
}
