// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's embedder.

use alloc::string::String;

use crate::commit::Embedder;
use crate::pages::PageSet;
use crate::ram::{RamError, TargetRam};
use crate::section::Section;
use crate::stream::{Hello, Message, Slot};

/// The target's embedder. [`Embedder::release`] drops what was built, also if the guest did not come whole.
pub trait Host: Embedder {
    /// The memory of the guest that was built.
    type Ram<'a>: TargetRam
    where
        Self: 'a;

    /// Makes a machine and memory for the guest. Its memory is zero. `absent` says that pages may come after the guest has
    /// changed hands, by a stream of version 2; then the answers have that version too
    /// ([`Writer::with_absent`](crate::stream::Writer::with_absent)).
    ///
    /// # Errors
    ///
    /// Why this target cannot, with the figures. The source gets the reason.
    fn build(&mut self, hello: &Hello, slots: &[Slot], absent: bool) -> Result<(), String>;

    /// The memory that was built.
    ///
    /// # Errors
    ///
    /// It does not have these memslots.
    fn ram(&self) -> Result<Self::Ram<'_>, RamError>;

    /// Takes a section. Images come before the first page.
    ///
    /// # Errors
    ///
    /// It is not known here, or is none.
    fn section(&mut self, section: Section) -> Result<(), String>;

    /// Makes pages absent: an access to one waits until it comes. Their present content, if any, is old.
    ///
    /// # Errors
    ///
    /// Why this target cannot.
    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        Err(alloc::format!("{} pages are absent, and this target needs all", absent.count()))
    }

    /// All of the guest is here. Checks that it could run now.
    ///
    /// # Errors
    ///
    /// Why it could not.
    fn ready(&mut self) -> Result<(), String>;

    /// Sends a message to the source, if there is a link. A message that is lost decides nothing.
    fn answer(&mut self, message: &Message);
}
