// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace (`docs/trace.md`), in images with the feature `trace`: lines for a file of the launcher.
//!
//! Each CPU collects its lines in its own buffer, and writes whole lines to the file when the buffer is full.
//! Invariants: a line's number is drawn while its CPU's buffer is locked, so a CPU's lines have ascending numbers. A
//! CPU that gives up a lock or a page writes the line before that step; every other line is written after its step.

mod engine;

use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::ops::Range;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use spin::{Mutex, Once};
use twofold_abi::control::TRACE_ARGUMENT;
use twofold_abi::trace::{Event, Header, Line, Source};
use twofold_stage2::primitive::observe;
use twofold_stage2::{Donated, Features, MetadataRange};

pub use engine::Traced;

use crate::board::Board;
use crate::cpus;
use crate::semihosting::File;

/// Begins the trace, if the image's own command line names a file: the text after [`TRACE_ARGUMENT`], to the end of the
/// line. Only `frames` hold entries of tables, and only `metadata` hold their locks.
///
/// # Errors
///
/// The file cannot be written.
pub fn begin(
    board: &Board,
    features: &Features,
    frames: &[Donated],
    metadata: impl Iterator<Item = MetadataRange>,
) -> Result<(), TraceError> {
    let Some((_, path)) = board.bootargs.split_once(TRACE_ARGUMENT) else { return Ok(()) };
    let failed = || TraceError { path: path.to_string() };
    let file = File::create(&CString::new(path).map_err(|_| failed())?).ok_or_else(failed)?;
    let header = alloc::format!("{}\n", Header { source: Source::Hypervisor });
    file.write(header.as_bytes()).map_err(|_| failed())?;
    TRACE.call_once(|| Trace {
        file,
        last: AtomicU64::new(0),
        cpus: board.cpus.iter().map(|_| Mutex::new(Cpu::default())).collect(),
        frames: frames.iter().map(|frames| frames.start().raw()..frames.start().raw() + frames.size()).collect(),
        metadata: metadata.collect(),
    });
    for (name, value) in features.named() {
        event(Event::Feature { name, value });
    }
    observe(Some(&engine::OBSERVER));
    Ok(())
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[error("the trace cannot be written to {path}: name a file in a directory that is there")]
pub struct TraceError {
    /// The file.
    path: String,
}

/// Writes the line of an event of this CPU, past or imminent, at the caller's place.
#[track_caller]
pub fn event(event: Event<'_>) {
    line(event, Some(Location::caller()));
}

/// Writes the remaining lines. From now on another CPU blocks at its next line, for ever, so no line is written without
/// the lines that it depends on.
pub fn end() {
    const PATIENCE: u32 = 1 << 20;
    let Some(trace) = TRACE.get() else { return };
    // Bounded: a CPU that failed while it wrote a line may call this.
    let lock = |cpu| (0..PATIENCE).find_map(|_| Mutex::try_lock(cpu));
    let mut stopped: ArrayVec<_, { twofold_abi::virt::MAX_CPUS as usize }> =
        trace.cpus.iter().filter_map(lock).collect();
    stopped.iter_mut().for_each(|cpu| cpu.flush(&trace.file));
    core::mem::forget(stopped);
}

static TRACE: Once<Trace> = Once::new();

struct Trace {
    file: File,
    last: AtomicU64,
    cpus: Vec<Mutex<Cpu>>,
    /// The memory for tables.
    frames: Vec<Range<u64>>,
    metadata: Vec<MetadataRange>,
}

#[derive(Default)]
struct Cpu {
    text: Text,
    /// The place in the source of the engine's next instruction.
    site: Option<&'static Location<'static>>,
}

/// Sets the place of this CPU's next instruction of the engine.
fn about_to(site: &'static Location<'static>) {
    if let Some(trace) = TRACE.get() {
        trace.cpus[cpus::current()].lock().site = Some(site);
    }
}

/// Traces an instruction that the engine has executed, at the place that was set before.
fn instruction(event: Event<'_>) {
    let site = TRACE.get().and_then(|trace| trace.cpus[cpus::current()].lock().site);
    line(event, site);
}

fn line(event: Event<'_>, site: Option<&'static Location<'static>>) {
    let (Some(trace), number) = (TRACE.get(), cpus::current()) else { return };
    let mut cpu = trace.cpus[number].lock();
    let seq = trace.last.fetch_add(1, Ordering::Relaxed) + 1;
    let line = Line { seq, cpu: number as u32, event, site: site.map(Into::into) };
    if cpu.text.add(&line).is_err() {
        cpu.flush(&trace.file);
        cpu.text.add(&line).expect("a line is shorter than the buffer");
    }
}

impl Cpu {
    fn flush(&mut self, file: &File) {
        let text = core::mem::take(&mut self.text.0);
        assert!(file.write(text.as_bytes()).is_ok(), "the trace cannot be written any more: is the disk full?");
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
