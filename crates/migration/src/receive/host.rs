// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's embedder.

use alloc::string::String;

use crate::commit::Embedder;
use crate::ram::{RamError, TargetRam};
use crate::section::Section;
use crate::stream::{Hello, Message, Slot};

/// The target's embedder. [`Embedder::release`] drops what was built, also if the guest did not come whole.
pub trait Host: Embedder {
    /// The memory of the guest that was built.
    type Ram<'a>: TargetRam
    where
        Self: 'a;

    /// Makes a machine and memory for the guest. Its memory is zero.
    ///
    /// # Errors
    ///
    /// Why this target cannot, with the figures. The source is told so.
    fn build(&mut self, hello: &Hello, slots: &[Slot]) -> Result<(), String>;

    /// The memory that was built.
    ///
    /// # Errors
    ///
    /// It does not have these memslots.
    fn ram(&self) -> Result<Self::Ram<'_>, RamError>;

    /// Takes a section.
    ///
    /// # Errors
    ///
    /// It is not known here, or is none.
    fn section(&mut self, section: Section) -> Result<(), String>;

    /// All of the guest is here. Checks that it could run now.
    ///
    /// # Errors
    ///
    /// Why it could not.
    fn ready(&mut self) -> Result<(), String>;

    /// Sends a message to the source, if there is a link. A message that is lost decides nothing.
    fn answer(&mut self, message: &Message);
}
