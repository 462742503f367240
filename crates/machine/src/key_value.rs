// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest program that serves requests to a key-value store ([`twofold_workload::key_value`]), and compares each word that
//! it reads with what the store must hold.
//!
//! Invariant: all state of the program is in [`Server::to_bytes`] and in the guest's memory. A request that was
//! interrupted goes on at the word at which it was, on this machine or on another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_workload::key_value::{EMPTY, Kind, Mix, Request, Requests, STATE, Table, WORDS};

use crate::program::{Ended, Exit, Instructions, Program};

/// The program of one vCPU. It ends when its [budget](Self::set_budget) is used up, or a word differs.
#[derive(Debug)]
pub struct Server {
    requests: Requests,
    at: At,
    budget: u64,
    broken: Option<Broken>,
    served: Arc<Served>,
}

/// The requests that a server has done, for other threads. It fills cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Served(AtomicU64);

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It has not begun.
    Start,
    /// It looks for its key in this record.
    Search(u64),
    /// It reads this word of this record.
    Read(u64, u64),
    /// It writes this word of this record.
    Write(u64, u64),
}

/// A word of the store that is not what was last written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key {key}, version {version}: the word at {address:#x} is {found:#x}, and {wanted:#x} was written")]
pub struct Broken {
    /// The key.
    pub key: u64,
    /// Its last version.
    pub version: u64,
    /// The word's address.
    pub address: u64,
    /// What it holds.
    pub found: u64,
    /// What it must hold.
    pub wanted: u64,
}

impl Server {
    /// A server that inserts all keys of a table, and then serves requests.
    pub fn new(table: Table, mix: Mix) -> Self {
        Self::of(Requests::new(table, mix), At::Start)
    }

    fn of(requests: Requests, at: At) -> Self {
        Self { requests, at, budget: 0, broken: None, served: Arc::default() }
    }

    /// The keys that are left to insert.
    pub fn left_to_insert(&self) -> u64 {
        self.requests.left_to_insert()
    }

    /// From now on the program ends after this number of requests.
    pub fn set_budget(&mut self, requests: u64) {
        self.budget = requests;
    }

    /// The requests that are left of the budget.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The word that differs, if any does. The program has ended there.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// The count of requests done.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// The state that moves with the vCPU. The budget is not a part of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let at = match self.at {
            At::Start => [0, 0, 0],
            At::Search(record) => [1, record, 0],
            At::Read(record, word) => [2, record, word],
            At::Write(record, word) => [3, record, word],
        };
        let words = self.requests.to_words().into_iter().chain(at).chain([self.served.count()]);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// The program with this state; `None` if the bytes are no state.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (requests, rest) = words.split_first_chunk::<STATE>()?;
        let requests = Requests::from_words(requests)?;
        let &[at, record, word, served] = rest else { return None };
        if record >= requests.table().records || word >= WORDS {
            return None;
        }
        let at = match at {
            0 => At::Start,
            1 => At::Search(record),
            2 => At::Read(record, word),
            3 => At::Write(record, word),
            _ => return None,
        };
        let server = Self::of(requests, at);
        server.served.0.store(served, Ordering::Relaxed);
        Some(server)
    }

    /// Does the next step of a request: one instruction. Returns whether the request is done.
    #[inline(always)]
    fn step<C: Instructions>(&mut self, cpu: &mut C, request: &Request) -> Result<bool, Exit> {
        let table = self.requests.table();
        let Request { key, kind, version } = *request;
        let after = |word: u64, next: fn(u64, u64) -> At, record: u64| {
            if word + 1 < WORDS { Some(next(record, word + 1)) } else { None }
        };
        match self.at {
            At::Start => self.at = At::Search(table.first(key)),
            At::Search(record) => {
                let found = cpu.load(table.word(record, 0))?;
                self.at = match (found, kind) {
                    (EMPTY, Kind::Insert) => At::Write(record, 0),
                    (found, Kind::Set | Kind::Get) if found == key => At::Read(record, 1),
                    // No key is ever removed, so the search of a key that was inserted never meets an empty record.
                    (EMPTY, _) => return Ok(self.differs(request, table.word(record, 0), EMPTY, key)),
                    _ => At::Search(table.next(record)),
                };
            }
            At::Read(record, word) => {
                let (address, wanted) = (table.word(record, word), table.content(key, version, word));
                let found = cpu.load(address)?;
                if found != wanted {
                    return Ok(self.differs(request, address, found, wanted));
                }
                match (after(word, At::Read, record), kind) {
                    (Some(next), _) => self.at = next,
                    (None, Kind::Set) => self.at = At::Write(record, 1),
                    (None, _) => return Ok(true),
                }
            }
            At::Write(record, word) => {
                let written = if kind == Kind::Set { version + 1 } else { version };
                cpu.store(table.word(record, word), table.content(key, written, word))?;
                match after(word, At::Write, record) {
                    Some(next) => self.at = next,
                    None => return Ok(true),
                }
            }
        }
        Ok(false)
    }

    #[cold]
    fn differs(&mut self, request: &Request, address: u64, found: u64, wanted: u64) -> bool {
        let Request { key, version, .. } = *request;
        self.broken = Some(Broken { key, version, address, found, wanted });
        false
    }
}

impl Program for Server {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.budget > 0 && self.broken.is_none() {
            let request = self.requests.next();
            while !self.step(cpu, &request)? {
                if self.broken.is_some() {
                    return Ok(Ended);
                }
            }
            self.requests.done(&request);
            self.at = At::Start;
            self.budget -= 1;
            self.served.0.store(self.served.count() + 1, Ordering::Relaxed);
        }
        Ok(Ended)
    }
}

impl Served {
    /// The requests done since the store was made. Any thread may read it at any time.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
