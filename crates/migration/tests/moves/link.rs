// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links that can be cut, an arbiter that can be silent, and a clock that follows the bytes that are sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use embedded_io::{ErrorKind, ErrorType, Read, Write};
use twofold_migration::Runtime;
use twofold_migration::commit::{Ownership, Request, arbitrate};
use twofold_migration::stream::wire::{Header, kind};

use crate::guest::Guest;

/// One direction of a link.
pub struct Pipe(Mutex<Bytes>, Condvar);

struct Bytes {
    bytes: VecDeque<u8>,
    closed: bool,
    /// Bytes that still get through, if the link is to be cut.
    left: Option<u64>,
}

/// Returns both ends of a link, which is cut after some bytes.
pub fn pipe(cut_after: Option<u64>) -> (Sender, Receiver) {
    let bytes = Bytes { bytes: VecDeque::new(), closed: false, left: cut_after };
    let pipe = Arc::new(Pipe(Mutex::new(bytes), Condvar::new()));
    (Sender(Arc::clone(&pipe)), Receiver(pipe))
}

/// Closes the link when it is dropped.
pub struct Sender(Arc<Pipe>);
pub struct Receiver(Arc<Pipe>);

impl ErrorType for Sender {
    type Error = ErrorKind;
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let mut pipe = self.0.0.lock().unwrap();
        let fits = pipe.left.map_or(bytes.len(), |left| bytes.len().min(left as usize));
        if pipe.closed || fits == 0 {
            pipe.closed = true;
            self.0.1.notify_all();
            return Err(ErrorKind::ConnectionReset);
        }
        pipe.left = pipe.left.map(|left| left - fits as u64);
        pipe.bytes.extend(&bytes[..fits]);
        self.0.1.notify_all();
        Ok(fits)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().closed = true;
        self.0.1.notify_all();
    }
}

impl ErrorType for Receiver {
    type Error = ErrorKind;
}

impl Read for Receiver {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        let mut pipe = self.0.0.lock().unwrap();
        while pipe.bytes.is_empty() && !pipe.closed {
            pipe = self.0.1.wait(pipe).unwrap();
        }
        let count = bytes.len().min(pipe.bytes.len());
        pipe.bytes.drain(..count).zip(bytes).for_each(|(byte, to)| *to = byte);
        Ok(count)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().closed = true;
    }
}

/// The owner record. The first requests of each side get no answer.
pub struct Arbiter {
    pub record: Mutex<Ownership>,
    /// For each host, the requests that are lost, and those whose answers are lost.
    pub lost: [(AtomicU64, AtomicU64); 2],
}

impl Arbiter {
    pub fn new(record: Ownership) -> Self {
        Self { record: Mutex::new(record), lost: Default::default() }
    }

    pub fn ask(&self, host: u64, request: Request) -> Option<Ownership> {
        let (requests, answers) = &self.lost[host as usize];
        let take =
            |left: &AtomicU64| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if take(requests).is_ok() {
            return None;
        }
        let now = arbitrate(&mut self.record.lock().unwrap(), request);
        take(answers).is_err().then_some(now)
    }
}

/// A clock that follows the bytes that are sent, and a guest that runs by it, on the same thread.
pub struct Virtual<'g> {
    pub guest: &'g Guest,
    pub now: AtomicU64,
    /// Nanoseconds for a byte.
    pub byte: u64,
    /// Writes a second, and what is left of one, for each vCPU.
    pub rates: Vec<u64>,
    pub owed: Vec<AtomicU64>,
    /// How much each is slowed down.
    pub slowed: Mutex<Vec<u16>>,
    /// Called at each write to a stream, with the number of the call.
    pub hook: Option<&'g (dyn Fn(u64) + Sync)>,
    pub calls: AtomicU64,
}

impl<'g> Virtual<'g> {
    pub fn new(guest: &'g Guest, byte: u64, rates: &[u64]) -> Self {
        let owed = rates.iter().map(|_| AtomicU64::new(0)).collect();
        let (rates, now, calls) = (rates.to_vec(), AtomicU64::new(0), AtomicU64::new(0));
        Self { guest, now, byte, rates, owed, slowed: Mutex::default(), hook: None, calls }
    }

    /// Lets time pass.
    pub fn pass(&self, nanoseconds: u64) {
        let now = self.now.fetch_add(nanoseconds, Ordering::Relaxed) + nanoseconds;
        self.guest.tick(now);
        let slowed = self.slowed.lock().unwrap().clone();
        for (vcpu, rate) in self.rates.iter().enumerate() {
            // One number for all, or one for each.
            let slowed = slowed.get(vcpu).or(slowed.first()).copied().unwrap_or(0);
            let more = rate * nanoseconds / 1000 * u64::from(1000 - slowed) / 1000;
            let owed = self.owed[vcpu].fetch_add(more, Ordering::Relaxed) + more;
            let writes = owed / 1_000_000;
            self.owed[vcpu].fetch_sub(writes * 1_000_000, Ordering::Relaxed);
            if writes > 0 {
                self.guest.work_while_pages_are_here(vcpu, writes);
            }
        }
    }
}

impl Runtime for Virtual<'_> {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn wait(&self, time: Duration) {
        self.pass(time.as_nanos() as u64);
    }
}

/// A stream's sink: time passes as bytes are sent.
pub struct Sink<'g, 'v> {
    pub sender: Sender,
    pub clock: &'v Virtual<'g>,
    /// When the stream is cut, if later than after some bytes.
    pub cut: Option<Cut>,
}

/// Where a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// This many bytes into the stream.
    Bytes(u64),
    /// This many bytes after the guest has stopped.
    Stopped(u64),
    /// This many bytes into the record of the end.
    End(u64),
}

impl Sink<'_, '_> {
    fn cut_after(&mut self, bytes: u64) {
        self.sender.0.0.lock().unwrap().left = Some(bytes);
        self.cut = None;
    }
}

impl ErrorType for Sink<'_, '_> {
    type Error = ErrorKind;
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let call = self.clock.calls.fetch_add(1, Ordering::Relaxed);
        self.clock.hook.inspect(|hook| hook(call));
        let stopped = !self.clock.guest.running.load(Ordering::Relaxed);
        let end = bytes.len() == size_of::<Header>() && bytes[0] == kind::END;
        match self.cut {
            Some(Cut::Stopped(after)) if stopped => self.cut_after(after),
            Some(Cut::End(after)) if stopped && end => self.cut_after(after),
            _ => {}
        }
        let count = self.sender.write(bytes)?;
        self.clock.pass(count as u64 * self.clock.byte);
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}
