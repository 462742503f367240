// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace (`docs/trace.md`), in images with the feature `trace`: lines for a file of the launcher.

mod engine;
mod lines;
pub mod platform;

use alloc::ffi::CString;
use alloc::string::{String, ToString};

use twofold_abi::control::TRACE_ARGUMENT;
use twofold_abi::trace::{Event, Header, Source};
use twofold_stage2::Features;

use super::exit_observer::ExitObserver;
use crate::board::Board;
use crate::memory::Taken;
use crate::read_sysreg;
use crate::semihosting::File;

/// Traces the entries and exits of one vCPU, and all steps of the engine.
pub struct Tracer {
    vcpu: u32,
}

impl ExitObserver for Tracer {
    type Error = TraceError;

    /// Begins the trace, if the image's own command line names a file: the text after [`TRACE_ARGUMENT`], to the end of
    /// the line.
    fn begin(board: &Board, _cpus: u32, features: &Features, taken: &Taken) -> Result<(), TraceError> {
        let Some((_, path)) = board.bootargs.split_once(TRACE_ARGUMENT) else { return Ok(()) };
        let failed = || TraceError { path: path.to_string() };
        let file = File::create(&CString::new(path).map_err(|_| failed())?).ok_or_else(failed)?;
        let header = alloc::format!("{}\n", Header { source: Source::Hypervisor });
        file.write(header.as_bytes()).map_err(|_| failed())?;
        lines::begin(file, board.cpus.len());
        for (name, value) in features.named() {
            lines::event(Event::Feature { name, value });
        }
        engine::begin(&taken.free, taken.metadata.ranges());
        Ok(())
    }

    fn vcpu_starts(index: usize) -> Self {
        Self { vcpu: index as u32 }
    }

    #[track_caller]
    fn tables_loaded(vttbr: u64) {
        lines::event(Event::Vttbr { vttbr });
        lines::event(Event::Isb);
    }

    #[track_caller]
    fn guest_entered(&mut self) {
        lines::event(Event::GuestEntered { vcpu: self.vcpu, vttbr: read_sysreg!(VTTBR_EL2) });
    }

    #[track_caller]
    fn guest_left(&mut self) {
        lines::event(Event::GuestLeft { vcpu: self.vcpu });
    }

    fn image_ends() {
        lines::end();
    }
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[error("the trace cannot be written to {path}: name a file in a directory that is there")]
pub struct TraceError {
    /// The file.
    path: String,
}
