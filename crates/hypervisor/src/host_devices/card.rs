// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver of a network card of the machine: that of the crate `virtio-drivers`, with buffers for both directions.
//!
//! Invariants:
//!
//! * EL2 makes no reference to a buffer that the device has.
//! * Each call does a bounded amount of work, and never waits for the device.
//! * What the device says is checked. If it breaks the rules, it is reset: then it takes and brings no frame any more.

use core::ptr::NonNull;

use twofold_devices::virtio::net::{FRAME_MAX, FRAME_MIN};
use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE};

use super::negotiate::{Unusable, check};

/// Frames that the device has in each direction at most.
pub const FRAMES: usize = 32;

/// Bytes of the header before each frame (VIRTIO 1.2, 5.1.6).
const HEADER: usize = 12;
/// Bytes of a buffer: the header and the longest frame, and no buffer crosses a page.
const BUFFER: usize = 2048;
const _: () = assert!(HEADER + FRAME_MAX <= BUFFER);
const PAGES: usize = 2 * FRAMES * BUFFER / PAGE_SIZE;

/// The card takes no frame now, or never again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The driver of a card.
pub struct Card<H: Hal, T: Transport> {
    /// `None`: the device broke the rules.
    device: Option<VirtIONetRaw<H, T, FRAMES>>,
    mac: [u8; 6],
    /// First those for frames from the device, then those for frames to it.
    buffers: NonNull<u8>,
    /// The buffer of each token.
    receiving: [Option<u8>; FRAMES],
    sending: [Option<u8>; FRAMES],
    /// Bytes in each buffer for sending that the device has.
    lengths: [usize; FRAMES],
    /// The buffers for sending that the device does not have, a bit each.
    free: u32,
}

// SAFETY: the memory of `buffers` belongs to this value. Everything else can be sent by itself.
unsafe impl<H: Hal, T: Transport + Send> Send for Card<H, T> {}

impl<H: Hal, T: Transport> Card<H, T> {
    /// Sets the device up, and gives it buffers.
    ///
    /// # Errors
    ///
    /// [`Unusable`].
    pub fn new(transport: T) -> Result<Self, Unusable> {
        check(&transport, DeviceType::Network)?;
        let device = VirtIONetRaw::new(transport)?;
        let mac = device.mac_address();
        let buffers = match H::dma_alloc(PAGES, BufferDirection::Both) {
            (0, _) => return Err(virtio_drivers::Error::DmaError.into()),
            (_, buffers) => buffers,
        };
        let (receiving, sending, lengths) = ([None; FRAMES], [None; FRAMES], [0; FRAMES]);
        let mut card = Self { device: Some(device), mac, buffers, receiving, sending, lengths, free: u32::MAX };
        for number in 0..FRAMES {
            card.lend(number);
        }
        if card.device.is_some() { Ok(card) } else { Err(Unusable::Broken) }
    }

    /// Its address.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Sends a frame. One that is no Ethernet frame is dropped.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Full> {
        self.reclaim();
        let Some(device) = &mut self.device else { return Err(Full) };
        if !(FRAME_MIN..=FRAME_MAX).contains(&frame.len()) {
            return Ok(());
        }
        let number = self.free.trailing_zeros() as usize;
        if number >= FRAMES {
            return Err(Full);
        }
        // SAFETY: the device does not have this buffer.
        let buffer = unsafe { buffer(self.buffers, FRAMES + number) };
        let length = HEADER + frame.len();
        buffer[..HEADER].fill(0);
        buffer[HEADER..length].copy_from_slice(frame);
        // SAFETY: until `reclaim` finds the token again, `free` keeps this module from making a reference to it.
        let begun = unsafe { device.transmit_begin(&buffer[..length]) };
        match begun.ok().and_then(|token| self.sending.get_mut(usize::from(token))) {
            Some(entry) => {
                *entry = Some(number as u8);
                self.lengths[number] = length;
                self.free &= !(1 << number);
                Ok(())
            }
            None => {
                self.fail();
                Err(Full)
            }
        }
    }

    /// Calls `act` with the oldest frame of the device. False: there is none.
    pub fn receive(&mut self, act: impl FnOnce(&[u8])) -> bool {
        let Some(device) = &mut self.device else { return false };
        let Some(token) = device.poll_receive() else { return false };
        let number = self.receiving.get_mut(usize::from(token)).and_then(Option::take);
        let Some(number) = number.map(usize::from) else {
            self.fail();
            return false;
        };
        // SAFETY: the device gives this buffer back.
        let buffer = unsafe { buffer(self.buffers, number) };
        // SAFETY: it is the buffer of this token.
        let received = unsafe { device.receive_complete(token, buffer) };
        match received {
            Ok((header, length)) if header == HEADER && length <= buffer.len() - HEADER => {
                if (FRAME_MIN..=FRAME_MAX).contains(&length) {
                    act(&buffer[HEADER..][..length]);
                }
                self.lend(number);
                true
            }
            _ => {
                self.fail();
                false
            }
        }
    }

    /// Gives the device a buffer for a frame.
    fn lend(&mut self, number: usize) {
        let Some(device) = &mut self.device else { return };
        // SAFETY: the device does not have this buffer. Until `receive` finds the token, no reference to it is made.
        let begun = unsafe { device.receive_begin(buffer(self.buffers, number)) };
        match begun.ok().and_then(|token| self.receiving.get_mut(usize::from(token))) {
            Some(entry) => *entry = Some(number as u8),
            None => self.fail(),
        }
    }

    /// Takes back buffers that were sent.
    fn reclaim(&mut self) {
        while let Some(device) = &mut self.device
            && let Some(token) = device.poll_transmit()
        {
            let number = self.sending.get_mut(usize::from(token)).and_then(Option::take);
            let Some(number) = number.map(usize::from) else { return self.fail() };
            // SAFETY: the device gives this buffer back; it is that of this token.
            let sent = unsafe {
                let buffer = buffer(self.buffers, FRAMES + number);
                device.transmit_complete(token, &buffer[..self.lengths[number]])
            };
            if sent.is_err() {
                return self.fail();
            }
            self.free |= 1 << number;
        }
    }

    /// The device broke the rules: its end resets it. It may have been reset too late, so its buffers are not used again.
    fn fail(&mut self) {
        self.device = None;
    }
}

/// A buffer.
///
/// # Safety
/// `buffers` must be those of a card, and nothing else may have this one.
unsafe fn buffer<'a>(buffers: NonNull<u8>, number: usize) -> &'a mut [u8] {
    let at = (number % (2 * FRAMES)) * BUFFER;
    // SAFETY: inside the memory, which is initialised; otherwise the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(buffers.as_ptr().add(at), BUFFER) }
}
