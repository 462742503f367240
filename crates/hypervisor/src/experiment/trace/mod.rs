// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The trace (`docs/trace.md`), in images with the feature `trace`: lines for its launcher.

mod engine;
mod lines;
pub mod platform;

use twofold_abi::control::TRACE_ARGUMENT;
use twofold_abi::trace::{Event, Header, Source};
use twofold_stage2::Features;

use super::exit_observer::ExitObserver;
use crate::board::Board;
use crate::memory::Taken;
use crate::{channel, read_sysreg};

/// Traces the entries and exits of one vCPU, and all steps of the engine.
pub struct Tracer {
    vcpu: u32,
}

impl ExitObserver for Tracer {
    const SEES_TABLES: bool = true;

    type Error = TraceError;

    /// Begins the trace, if the image's own command line has [`TRACE_ARGUMENT`].
    fn begin(board: &Board, _cpus: u32, features: &Features, taken: &Taken) -> Result<(), TraceError> {
        if !board.bootargs.split_whitespace().any(|word| word == TRACE_ARGUMENT) {
            return Ok(());
        }
        let header = alloc::format!("{}\n", Header { source: Source::Hypervisor });
        if !channel::trace(header.as_bytes()) {
            return Err(TraceError);
        }
        lines::begin(board.cpus.len());
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
#[error("this machine has no control channel for the trace: give QEMU the options of docs/control.md")]
pub struct TraceError;
