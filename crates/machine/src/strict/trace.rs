// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's trace: a line of text for each event, in a file (`docs/trace.md`).
//!
//! Invariant: a CPU has events only while it holds the turn, and writes each event's line before the next event. So the
//! lines are in the order of the events.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_abi::trace::{Event, Header, Line, Source};
use twofold_stage2::Features;

use super::options::MachineError;

/// The environment variable that names the file for the first machine of the process. The files of later machines have
/// `.1`, `.2` and so on appended.
const VARIABLE: &str = "TWOFOLD_TRACE";

/// The trace of a machine, or none.
pub(crate) struct Trace(Option<Writer>);

/// A trace that is being written.
struct Writer {
    path: PathBuf,
    /// `None` after an error.
    file: Option<BufWriter<File>>,
    last: u64,
    /// The CPU of the next event, and the place in the source.
    cpu: usize,
    site: Option<&'static Location<'static>>,
    /// The guest that each CPU is in: the vCPU and `VTTBR_EL2`.
    inside: Vec<Option<(u32, u64)>>,
}

impl Trace {
    /// The trace of a machine, in the file `asked`, or in the one that the environment names; none without either.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(super) fn new(asked: Option<PathBuf>, features: &Features, cpus: usize) -> Result<Self, MachineError> {
        let Some(path) = asked.or_else(from_environment) else { return Ok(Self(None)) };
        let file = File::create(&path).map_err(|why| MachineError::Trace { path: path.clone(), why })?;
        let site = Some(Location::caller());
        let file = Some(BufWriter::with_capacity(1 << 16, file));
        let mut writer = Writer { path, file, last: 0, cpu: 0, site, inside: vec![None; cpus] };
        writer.write(|file| writeln!(file, "{}", Header { source: Source::Machine }));
        for (name, value) in features.named() {
            writer.event(Event::Feature { name, value });
        }
        Ok(Self(Some(writer)))
    }

    /// Sets the CPU and the place of the next event.
    #[inline]
    pub(super) fn at(&mut self, cpu: usize, site: Option<&'static Location<'static>>) {
        if let Some(writer) = &mut self.0 {
            (writer.cpu, writer.site) = (cpu, site);
        }
    }

    /// Records the event.
    #[inline]
    pub(super) fn event(&mut self, event: Event<'_>) {
        if let Some(writer) = &mut self.0 {
            writer.event(event);
        }
    }

    /// Records that the CPU is in a guest from now on.
    pub(super) fn inside(&mut self, vcpu: u32, vttbr: u64, site: &'static Location<'static>) {
        let Some(writer) = &mut self.0 else { return };
        if writer.inside[writer.cpu] != Some((vcpu, vttbr)) {
            writer.leave();
            writer.line(Event::GuestEntered { vcpu, vttbr }, Some(site));
            writer.inside[writer.cpu] = Some((vcpu, vttbr));
        }
    }

    /// Records that the CPU has left its guest.
    pub(super) fn outside(&mut self) {
        if let Some(writer) = &mut self.0 {
            writer.leave();
        }
    }

    /// Flushes the file once all CPUs are off, so that a reader finds all lines.
    pub(super) fn flush(&mut self) {
        if let Some(writer) = &mut self.0 {
            for cpu in 0..writer.inside.len() {
                writer.cpu = cpu;
                writer.leave();
            }
            writer.write(BufWriter::flush);
        }
    }
}

impl Writer {
    fn event(&mut self, event: Event<'_>) {
        // Events of the guest's own walks occur while the CPU is in the guest. For any other event the CPU has left it.
        if matches!(event, Event::Hardware { .. }) {
            return self.line(event, None);
        }
        self.leave();
        self.line(event, self.site);
    }

    fn leave(&mut self) {
        if let Some((vcpu, _)) = self.inside[self.cpu].take() {
            self.line(Event::GuestLeft { vcpu }, None);
        }
    }

    fn line(&mut self, event: Event<'_>, site: Option<&'static Location<'static>>) {
        self.last += 1;
        let line = Line { seq: self.last, cpu: self.cpu as u32, event, site: site.map(Into::into) };
        self.write(|file| writeln!(file, "{line}"));
    }

    /// A write error ends the trace, not the run, which continues as it would without a trace.
    fn write(&mut self, body: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if let Some(Err(error)) = self.file.as_mut().map(body) {
            eprintln!("the trace {} is cut off: {error}", self.path.display());
            self.file = None;
        }
    }
}

fn from_environment() -> Option<PathBuf> {
    static MACHINES: AtomicU64 = AtomicU64::new(0);
    let mut path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
    match MACHINES.fetch_add(1, Ordering::Relaxed) {
        0 => {}
        number => path.push(format!(".{number}")),
    }
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use twofold_abi::trace;
    use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};

    /// Recorders index the trace's names of instructions by the number of the platform's.
    #[test]
    fn instructions_are_numbered_as_in_the_trace() {
        fn names(all: &[impl Debug]) -> Vec<String> {
            all.iter().map(|one| format!("{one:?}")).collect()
        }
        let tlbi = [
            Tlbi::Ipas2E1,
            Tlbi::Ipas2E1Is,
            Tlbi::Ipas2Le1Is,
            Tlbi::Ripas2E1Is,
            Tlbi::Ripas2Le1Is,
            Tlbi::VmallE1,
            Tlbi::VmallE1Is,
            Tlbi::VmallS12E1Is,
            Tlbi::Alle1Is,
        ];
        assert_eq!(names(trace::Tlbi::ALL), names(&tlbi));
        assert!(tlbi.iter().enumerate().all(|(number, one)| *one as usize == number));
        let domains = [Domain::IshSt, Domain::Ish, Domain::NshSt, Domain::Nsh];
        assert_eq!(names(trace::Domain::ALL), names(&domains));
        assert!(domains.iter().enumerate().all(|(number, one)| *one as usize == number));
        assert_eq!(names(trace::Dc::ALL), names(&[Dc::Civac, Dc::Zva]));
        assert_eq!((Dc::Civac as usize, Dc::Zva as usize), (0, 1));
        assert_eq!(names(trace::Ic::ALL), names(&[Ic::Ivau, Ic::IallUis]));
        assert_eq!((Ic::Ivau as usize, Ic::IallUis as usize), (0, 1));
    }
}
