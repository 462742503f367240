// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A state as bytes, written and read one piece after the other. `snapshot.rs` describes the bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::state::StateError;

/// Writes a state, one piece after the other.
pub struct Writer<'r> {
    room: &'r mut [u8],
    length: usize,
}

/// Reads a state.
pub struct Reader<'b> {
    bytes: &'b [u8],
    read: usize,
}

impl<'r> Writer<'r> {
    pub(super) fn new(room: &'r mut [u8]) -> Self {
        Self { room, length: 0 }
    }

    pub(super) fn put(&mut self, piece: &(impl IntoBytes + Immutable)) -> Result<(), StateError> {
        let (bytes, found) = (piece.as_bytes(), self.room.len());
        let wanted = self.length + bytes.len();
        let place = self.room.get_mut(self.length..wanted).ok_or(StateError::Length { found, wanted })?;
        place.copy_from_slice(bytes);
        self.length = wanted;
        Ok(())
    }

    pub(super) fn written(self) -> &'r [u8] {
        self.room.split_at(self.length).0
    }
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, read: 0 }
    }

    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T, StateError> {
        let wanted = self.read + size_of::<T>();
        let found = self.bytes.len();
        let piece = self.bytes.get(self.read..wanted).and_then(|piece| T::read_from_bytes(piece).ok());
        self.read = wanted;
        piece.ok_or(StateError::Length { found, wanted })
    }

    pub(super) fn end(self) -> Result<(), StateError> {
        let (found, wanted) = (self.bytes.len(), self.read);
        if found == wanted { Ok(()) } else { Err(StateError::Length { found, wanted }) }
    }
}

/// Refuses a state for the first reason that applies.
pub(super) fn refuse<const N: usize>(reasons: [(bool, &'static str); N]) -> Result<(), StateError> {
    match reasons.into_iter().find(|(impossible, _)| *impossible) {
        Some((_, why)) => Err(StateError::Impossible(why)),
        None => Ok(()),
    }
}
