// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages of a guest, read where they are, and those of a guest that comes from elsewhere, written where they are
//! ([`saved`](super::saved)).
//!
//! A page in the guest's store is read there, and stays there (`twofold_memory::swap`, K1 to K4). A page that has no frame
//! here, because the guest has reached its limit, waits for one, while others leave (O1 to O5). Neither waits in EL2: the
//! command's next piece looks again.
//!
//! Invariant: after each look, the guest's task knows of what was asked of the store (W2 of [`swap`](crate::swap)).

use alloc::vec;
use alloc::vec::Vec;

use thiserror::Error;
use twofold_abi::channel::PAGE_SIZE;
use twofold_memory::swap::{Located, Peek, PeekError, Peeked, Poke, Poked};
use twofold_stage2::Ipa;
use twofold_vmm::life::NotNow;
use zerocopy::IntoBytes;

use super::Vm;
use crate::experiment::EnginePlatform;
use crate::granule::GuestGranule;
use crate::swap::Why;

/// Why a page is not read or written.
#[derive(Debug, Error)]
pub(crate) enum PageError {
    /// The guest runs, or has ended.
    #[error(transparent)]
    State(#[from] NotNow),
    /// The guest does not come from elsewhere, or has run here.
    #[error("the guest has begun here: start it with what it was saved to")]
    HasBegun,
    /// The content is no page.
    #[error("a page has {PAGE_SIZE} bytes or none, not {0}")]
    Size(usize),
    /// The guest has no memory there, or none is left for it.
    #[error(transparent)]
    Memory(#[from] twofold_memory::Error),
    /// The page cannot be read in the store.
    #[error(transparent)]
    Peek(#[from] PeekError),
    /// The store does not give the page.
    #[error("the page at {page} cannot be read{why}")]
    Store {
        /// The page.
        page: Ipa,
        /// Why not.
        why: Why,
    },
    /// No other page leaves for this one.
    #[error("there is no room for the page at {page}{why}")]
    NoRoom {
        /// The page.
        page: Ipa,
        /// Why not.
        why: Why,
    },
}

/// A page that is being read in the guest's store.
pub(crate) struct Reading {
    vm: &'static Vm,
    peek: Peek<'static, EnginePlatform, GuestGranule>,
}

/// A page that is to be written when there is room for it.
pub(crate) struct Writing {
    vm: &'static Vm,
    poke: Poke<'static, EnginePlatform, GuestGranule>,
}

/// What has become of a page.
pub(crate) enum Looked<T, L> {
    /// It is done.
    Done(T),
    /// Look again.
    Later(L),
}

const ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// The address of a page.
fn address(page: u32) -> Ipa {
    Ipa::new(u64::from(page) * PAGE_SIZE as u64)
}

impl Vm {
    /// The content of the page of the guest at `page` times 4096; nothing if it is all zero. While the guest runs, it may write
    /// to the page meanwhile. A piece in the sense of [`sweep`](super::sweep).
    pub(crate) fn read_page(&'static self, page: u32) -> Result<Looked<Vec<u8>, Reading>, PageError> {
        let mut words = vec![0_u64; PAGE_SIZE / size_of::<u64>()];
        let read = self.sweeps.piece(|| -> Result<_, NotNow> {
            self.look()?;
            Ok(self.memory.read(address(page), words.as_mut_bytes()))
        })?;
        match read {
            Ok(()) => Ok(Looked::Done(content(&words))),
            Err(twofold_memory::Error::Absent { page, .. }) => {
                Reading { vm: self, peek: self.memory.peek(page)? }.look()
            }
            Err(why) => Err(why.into()),
        }
    }

    /// The page at `page` times 4096 has this content; nothing: zeroes.
    pub(crate) fn write_page(&'static self, page: u32, content: &[u8]) -> Result<Looked<(), Writing>, PageError> {
        if !self.is_incoming() {
            return Err(PageError::HasBegun);
        }
        let bytes = match content.len() {
            // It begins as zeroes, which take no memory.
            0 if self.memory.locate(address(page))? == Located::Zero => return Ok(Looked::Done(())),
            0 => &ZEROES,
            PAGE_SIZE => content,
            found => return Err(PageError::Size(found)),
        };
        match self.memory.write(address(page), bytes) {
            Ok(()) => Ok(Looked::Done(())),
            Err(twofold_memory::Error::Absent { page, .. }) => {
                Writing { vm: self, poke: self.memory.poke(page)? }.look(content)
            }
            Err(why) => Err(why.into()),
        }
    }

    fn why(&self, page: Ipa) -> Why {
        self.swap.as_ref().map(|swap| swap.why(Some(page))).unwrap_or_default()
    }
}

impl Reading {
    /// Looks whether the page has come.
    pub(crate) fn look(mut self) -> Result<Looked<Vec<u8>, Self>, PageError> {
        self.vm.look()?;
        let mut words = vec![0_u64; PAGE_SIZE / size_of::<u64>()];
        let Some((bytes, _)) = words.as_mut_bytes().split_first_chunk_mut() else { return Ok(Looked::Later(self)) };
        let peeked = self.peek.look(bytes);
        self.vm.pages_asked_for();
        match peeked {
            Peeked::Read => Ok(Looked::Done(content(&words))),
            Peeked::Later => Ok(Looked::Later(self)),
            Peeked::Failed(_) => {
                let page = self.peek.page();
                Err(PageError::Store { page, why: self.vm.why(page) })
            }
        }
    }
}

impl Writing {
    /// Looks whether there is room for the page, which has this content.
    pub(crate) fn look(mut self, content: &[u8]) -> Result<Looked<(), Self>, PageError> {
        if !self.vm.is_incoming() {
            return Err(PageError::HasBegun);
        }
        let poked = self.poke.look(content.first_chunk());
        self.vm.pages_asked_for();
        match poked? {
            Poked::Written => Ok(Looked::Done(())),
            Poked::Later => Ok(Looked::Later(self)),
            Poked::Failed(_) => {
                let page = self.poke.page();
                Err(PageError::NoRoom { page, why: self.vm.why(page) })
            }
        }
    }
}

/// A page's words as bytes, since the image makes no access that is not aligned; none if all are zero.
fn content(words: &[u64]) -> Vec<u8> {
    if words.iter().all(|word| *word == 0) { Vec::new() } else { words.as_bytes().to_vec() }
}
