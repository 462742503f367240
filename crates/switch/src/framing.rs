// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames in a stream of bytes, as QEMU's `-netdev stream` has them: a length of 4 bytes in network order, then the frame.

use thiserror::Error;

/// The longest frame that a stream may have. A longer one is no frame of QEMU's.
pub const LENGTH_MAX: usize = 68 << 10;

/// Bytes of a length.
const PREFIX: usize = 4;

/// The other side speaks another protocol.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a frame of {0} bytes, and {LENGTH_MAX} are the most: is the other end a `-netdev stream`?")]
pub struct TooLong(pub u32);

/// Bytes that came, cut into frames.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// The bytes before are done.
    read: usize,
}

impl Incoming {
    /// More bytes have come. At most one frame is kept beside them.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    ///
    /// # Errors
    ///
    /// [`TooLong`]. The stream cannot be read any further.
    pub fn frame(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let rest = &self.bytes[self.read..];
        let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix);
        if length as usize > LENGTH_MAX {
            return Err(TooLong(length));
        }
        let Some(frame) = rest.get(..length as usize) else { return Ok(None) };
        self.read += PREFIX + frame.len();
        Ok(Some(frame))
    }
}

/// The bytes of a frame that leaves.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
}

impl Outgoing {
    /// Whether the last frame has left as a whole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// What is to be written.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// This number of bytes was written.
    pub fn advance(&mut self, count: usize) {
        self.written += count;
    }

    /// The next frame. The one before has left.
    pub fn set(&mut self, frame: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(frame);
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in vec(vec(any::<u8>(), 0..2000), 0..20),
            cuts in vec(1..700_usize, 1..50),
        ) {
            let mut stream = Vec::new();
            let mut outgoing = Outgoing::default();
            for frame in &frames {
                prop_assert!(outgoing.is_empty());
                outgoing.set(frame);
                while !outgoing.is_empty() {
                    let part = outgoing.rest().len().min(cuts[stream.len() % cuts.len()]);
                    stream.extend_from_slice(&outgoing.rest()[..part]);
                    outgoing.advance(part);
                }
            }
            let (mut incoming, mut came, mut at) = (Incoming::default(), Vec::new(), 0);
            while at < stream.len() {
                let to = (at + cuts[at % cuts.len()]).min(stream.len());
                incoming.add(&stream[at..to]);
                at = to;
                while let Some(frame) = incoming.frame().unwrap() {
                    came.push(frame.to_vec());
                }
            }
            prop_assert!(came == frames);
            prop_assert!(incoming.frame().unwrap().is_none());
        }
    }

    #[test]
    fn another_protocol_is_recognised() {
        let mut incoming = Incoming::default();
        incoming.add(b"GET / HTTP/1.1\r\n");
        assert_eq!(incoming.frame(), Err(TooLong(u32::from_be_bytes(*b"GET "))));
    }
}
