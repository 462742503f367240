// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of the trace, and their buffers.
//!
//! Each CPU collects its lines in its own buffer, and writes whole lines to the control channel when the buffer is full.
//! Invariants: a line's number is drawn while its CPU's buffer is locked, so a CPU's lines have ascending numbers. A
//! CPU that gives up a lock or a page writes the line before that step; every other line is written after its step.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use spin::{Mutex, Once};
use twofold_abi::trace::{Event, Line};

use crate::{channel, cpus};

/// Writes the lines of this many CPUs from now on.
pub(super) fn begin(cpus: usize) {
    let cpus = (0..cpus).map(|_| Mutex::new(Cpu::default())).collect();
    TRACE.call_once(|| Trace { last: AtomicU64::new(0), cpus });
}

/// Writes the line of an event of this CPU, past or imminent, at the caller's place.
#[track_caller]
pub(super) fn event(event: Event<'_>) {
    line(event, Some(Location::caller()));
}

/// Writes the remaining lines. From now on another CPU blocks at its next line, for ever, so no line is written without
/// the lines that it depends on.
pub(super) fn end() {
    const PATIENCE: u32 = 1 << 20;
    let Some(trace) = TRACE.get() else { return };
    // Bounded: a CPU that failed while it wrote a line may call this.
    let lock = |cpu| (0..PATIENCE).find_map(|_| Mutex::try_lock(cpu));
    let mut stopped: ArrayVec<_, { twofold_abi::virt::MAX_CPUS as usize }> =
        trace.cpus.iter().filter_map(lock).collect();
    stopped.iter_mut().for_each(|cpu| cpu.flush());
    core::mem::forget(stopped);
}

static TRACE: Once<Trace> = Once::new();

struct Trace {
    last: AtomicU64,
    cpus: Vec<Mutex<Cpu>>,
}

#[derive(Default)]
struct Cpu {
    text: Text,
    /// The place in the source of the engine's next instruction.
    site: Option<&'static Location<'static>>,
}

/// Sets the place of this CPU's next instruction of the engine.
pub(super) fn about_to(site: &'static Location<'static>) {
    if let Some(trace) = TRACE.get() {
        trace.cpus[cpus::current()].lock().site = Some(site);
    }
}

/// Traces an instruction that the engine has executed, at the place that was set before.
pub(super) fn instruction(event: Event<'_>) {
    let site = TRACE.get().and_then(|trace| trace.cpus[cpus::current()].lock().site);
    line(event, site);
}

pub(super) fn line(event: Event<'_>, site: Option<&'static Location<'static>>) {
    let (Some(trace), number) = (TRACE.get(), cpus::current()) else { return };
    let mut cpu = trace.cpus[number].lock();
    let seq = trace.last.fetch_add(1, Ordering::Relaxed) + 1;
    let line = Line { seq, cpu: number as u32, event, site: site.map(Into::into) };
    if cpu.text.add(&line).is_err() {
        cpu.flush();
        cpu.text.add(&line).expect("a line is shorter than the buffer");
    }
}

impl Cpu {
    fn flush(&mut self) {
        let text = core::mem::take(&mut self.text.0);
        assert!(channel::trace(text.as_bytes()), "the trace cannot be sent any more");
        self.text.0 = text;
        self.text.0.clear();
    }
}

/// Lines, one after the other.
struct Text(String);

const SIZE: usize = 16 << 10;

impl Default for Text {
    fn default() -> Self {
        Self(String::with_capacity(SIZE))
    }
}

impl Text {
    /// Adds a whole line, or nothing.
    fn add(&mut self, line: &Line<'_>) -> fmt::Result {
        let before = self.0.len();
        let written = writeln!(self, "{line}");
        if written.is_err() {
            self.0.truncate(before);
        }
        written
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.capacity() - self.0.len() < text.len() {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
