// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A key-value store under load, as one vCPU runs it: which request comes next, where its record is, and each word that
//! the record must hold.
//!
//! A [`Table`] is an open-addressing hash table in guest memory, half full. A record has [`WORDS`] words: the key, the
//! version, the value, and a check word over all of them. A `SET` writes the next version of a record, and a `GET` reads
//! a record. Both compare every word that they read with the word that the last `SET` wrote.
//!
//! Invariant: the [`Requests`] alone determine the last version of each key. So a page with an older content is found even
//! if its records are whole, and the state that moves with a vCPU is a few words, however large its table is. The `SET`s
//! of a class of keys go through its keys in an order that is a permutation; so a key's version is the number of whole
//! rounds, and one more if the present round has passed the key.

/// The words of a record.
pub const WORDS: u64 = 16;
/// The bytes of a record.
pub const RECORD: u64 = WORDS * 8;
/// The key of an empty record.
pub const EMPTY: u64 = 0;

/// The place of the check word in its record.
const CHECK: u64 = WORDS - 1;
/// The place of the version.
const VERSION: u64 = 1;

/// A hash table in guest memory. One vCPU uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The address of its first record, a multiple of 8.
    pub start: u64,
    /// The number of records that it has room for.
    pub records: u64,
    /// Makes its values differ from those of another table.
    pub seed: u64,
}

/// The load of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// The percentage of requests that are `SET`s.
    pub sets: u64,
    /// The percentage of keys that are hot.
    pub hot_keys: u64,
    /// The percentage of requests that are for hot keys.
    pub hot_requests: u64,
}

/// The requests to a table, from some point on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    table: Table,
    mix: Mix,
    classes: [Class; 2],
    random: u64,
    /// The `SET`s so far of hot and of other keys.
    sets: [u64; 2],
    /// The keys that were inserted so far. Requests begin when all are.
    inserted: u64,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its key.
    pub key: u64,
    /// What it does.
    pub kind: Kind,
    /// The version that the record has before it.
    pub version: u64,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes the first version of a key that the table does not have.
    Insert,
    /// Reads the record, and writes its next version.
    Set,
    /// Reads the record.
    Get,
}

impl Table {
    /// A table in this memory: as many records as fit, at least two. `None` if it is too small, or not aligned.
    pub const fn new(start: u64, bytes: u64, seed: u64) -> Option<Self> {
        let records = bytes / RECORD;
        if records < 2 || !start.is_multiple_of(8) || start.checked_add(bytes).is_none() {
            return None;
        }
        Some(Self { start, records, seed })
    }

    /// The number of keys: they fill half of the table.
    pub const fn keys(&self) -> u64 {
        self.records / 2
    }

    /// The record at which the search for a key begins.
    pub const fn first(&self, key: u64) -> u64 {
        mix(key ^ self.seed) % self.records
    }

    /// The record after this one, at which the search goes on.
    pub const fn next(&self, record: u64) -> u64 {
        if record + 1 < self.records { record + 1 } else { 0 }
    }

    /// The address of a word of a record.
    pub const fn word(&self, record: u64, word: u64) -> u64 {
        self.start + record * RECORD + word * 8
    }

    /// What a word of the record of this key and version holds.
    pub fn content(&self, key: u64, version: u64, word: u64) -> u64 {
        match word {
            0 => key,
            VERSION => version,
            CHECK => (0..CHECK).fold(0, |check: u64, word| check.rotate_left(7) ^ self.content(key, version, word)),
            _ => mix(self.seed ^ mix(key ^ mix(version)) ^ word),
        }
    }

    /// The hot keys, and the others, of which there may be none. At least one is hot.
    fn classes(&self, mix: &Mix) -> [Class; 2] {
        let keys = self.keys();
        let hot = (keys / 100 * mix.hot_keys + keys % 100 * mix.hot_keys / 100).clamp(1, keys);
        [Class::new(1, hot), Class::new(1 + hot, keys - hot)]
    }
}

/// Keys that are in order of their numbers, and the permutation in which `SET`s go through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    first: u64,
    keys: u64,
    by: u64,
}

impl Class {
    fn new(first: u64, keys: u64) -> Self {
        // About the golden ratio, so that keys that follow each other are far apart.
        let near = (u128::from(keys) * 618 / 1000) as u64 | 1;
        let by = (0..).map(|more| near + 2 * more).find(|by| is_coprime(*by, keys)).unwrap_or(1);
        Self { first, keys, by }
    }

    /// The key of a turn. Turns below the number of keys have each key once.
    fn key(&self, turn: u64) -> u64 {
        let number = u128::from(turn) * u128::from(self.by) % u128::from(self.keys.max(1));
        self.first + number as u64
    }
}

impl Mix {
    /// Whether each part is a percentage.
    pub const fn is_valid(&self) -> bool {
        self.sets <= 100 && self.hot_keys <= 100 && self.hot_requests <= 100
    }
}

impl Requests {
    /// The requests from the first on: first each key is inserted.
    pub fn new(table: Table, mix: Mix) -> Self {
        Self { table, mix, classes: table.classes(&mix), random: table.seed, sets: [0; 2], inserted: 0 }
    }

    /// The table.
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// The keys that are left to insert.
    pub const fn left_to_insert(&self) -> u64 {
        self.table.keys() - self.inserted
    }

    /// The next request. It is the same until it is [done](Self::done).
    pub fn next(&self) -> Request {
        if self.inserted < self.table.keys() {
            return Request { key: self.inserted + 1, kind: Kind::Insert, version: 0 };
        }
        let draw = mix(self.random);
        let (is_hot, is_set) = (draw % 100 < self.mix.hot_requests, draw / 100 % 100 < self.mix.sets);
        let place = usize::from(!is_hot && self.classes[1].keys > 0);
        let (class, sets) = (&self.classes[place], self.sets[place]);
        let turn = if is_set { sets % class.keys } else { (draw >> 16) % class.keys };
        let version = sets / class.keys + u64::from(turn < sets % class.keys);
        Request { key: class.key(turn), kind: if is_set { Kind::Set } else { Kind::Get }, version }
    }

    /// The request that came [next](Self::next) is done.
    pub fn done(&mut self, request: &Request) {
        match request.kind {
            Kind::Insert => self.inserted += 1,
            Kind::Set => {
                self.sets[usize::from(request.key >= self.classes[1].first)] += 1;
                self.random = self.random.wrapping_add(STEP);
            }
            Kind::Get => self.random = self.random.wrapping_add(STEP),
        }
    }

    /// All of it, as words.
    pub const fn to_words(&self) -> [u64; STATE] {
        let Self { table, mix: Mix { sets, hot_keys, hot_requests }, random, sets: [hot, other], inserted, .. } = *self;
        let Table { start, records, seed } = table;
        [start, records, seed, sets, hot_keys, hot_requests, random, hot, other, inserted]
    }

    /// From these words; `None` if they are not those of requests.
    pub fn from_words(words: &[u64; STATE]) -> Option<Self> {
        let &[start, records, seed, sets, hot_keys, hot_requests, random, hot, other, inserted] = words;
        let table = Table::new(start, records.checked_mul(RECORD)?, seed)?;
        let mix = Mix { sets, hot_keys, hot_requests };
        let is_whole = mix.is_valid() && inserted <= table.keys();
        is_whole.then(|| Self { random, sets: [hot, other], inserted, ..Self::new(table, mix) })
    }
}

/// The words of [`Requests::to_words`].
pub const STATE: usize = 10;
/// The increment of SplitMix64 (Steele and others, 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64: a bijection that scatters.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(STEP);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn is_coprime(one: u64, other: u64) -> bool {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one == 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;

    const MIX: Mix = Mix { sets: 50, hot_keys: 20, hot_requests: 80 };

    fn table() -> Table {
        Table::new(0x4000_0000, 1000 * RECORD, 7).unwrap()
    }

    #[test]
    fn versions_are_those_of_a_store_that_keeps_all() {
        for mix in
            [MIX, Mix { sets: 100, hot_keys: 0, hot_requests: 0 }, Mix { sets: 10, hot_keys: 100, hot_requests: 100 }]
        {
            let (mut requests, mut kept) = (Requests::new(table(), mix), BTreeMap::new());
            let mut sets = 0;
            for _ in 0..20_000 {
                let request = requests.next();
                match request.kind {
                    Kind::Insert => assert_eq!(kept.insert(request.key, 0), None),
                    Kind::Get => assert_eq!(kept[&request.key], request.version),
                    Kind::Set => {
                        let version = kept.get_mut(&request.key).unwrap();
                        assert_eq!(*version, request.version);
                        *version += 1;
                        sets += 1;
                    }
                }
                requests.done(&request);
                assert_eq!(Requests::from_words(&requests.to_words()), Some(requests));
            }
            assert_eq!(kept.len() as u64, table().keys());
            let wanted = 19_500 * mix.sets / 100;
            assert!(sets > wanted * 9 / 10 && sets <= wanted * 11 / 10, "{sets} SETs of 19,500 requests, {mix:?}");
        }
    }

    #[test]
    fn most_requests_are_for_hot_keys() {
        let mut requests = Requests::new(table(), MIX);
        let mut hot = 0;
        for _ in 0..20_000 {
            let request = requests.next();
            hot += u64::from(request.kind != Kind::Insert && request.key <= table().keys() / 5);
            requests.done(&request);
        }
        assert!((19_500 * 75 / 100..19_500 * 85 / 100).contains(&hot), "{hot}");
    }

    #[test]
    fn each_key_of_a_class_has_its_turn() {
        for count in [1, 2, 3, 6, 12, 100, 616, 1001] {
            let class = Class::new(5, count);
            let mut all: Vec<_> = (0..count).map(|turn| class.key(turn)).collect();
            all.sort_unstable();
            assert!(all.iter().copied().eq(5..5 + count), "{count}");
        }
    }

    #[test]
    fn each_word_says_which_key_and_version_it_is_of() {
        let table = table();
        let other = Table { seed: 8, ..table };
        let words =
            |table: &Table, key, version| (0..WORDS).map(|word| table.content(key, version, word)).collect::<Vec<_>>();
        let one = words(&table, 3, 4);
        for changed in [words(&table, 3, 5), words(&table, 4, 4), words(&other, 3, 4)] {
            let same = one.iter().zip(&changed).filter(|(one, other)| one == other).count();
            assert!(same <= 2, "{same} words are the same");
            assert_ne!(one[CHECK as usize], changed[CHECK as usize]);
        }
    }

    #[test]
    fn what_is_no_state_is_refused() {
        let words = Requests::new(table(), MIX).to_words();
        for (at, bad) in [(0, 4), (0, u64::MAX - 7), (1, 1), (1, u64::MAX), (3, 101), (4, 101), (5, 101), (9, 501)] {
            let mut words = words;
            words[at] = bad;
            assert_eq!(Requests::from_words(&words), None, "word {at}: {bad}");
        }
        assert_eq!(Table::new(0, RECORD, 0), None);
    }
}
