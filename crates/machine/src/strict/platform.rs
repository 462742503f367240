// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's platform: each instruction is an event of the CPU that the thread is.
//!
//! Invariant: on a thread that is no CPU, instructions have no effect, except that `DC ZVA` zeroes memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use twofold_abi::trace::{self, Event};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Pa, TableMetadata, Vmids};

use super::breach::Rule;
use super::context::Context;
use super::model::{Broken, Model, Outcome};
use super::shared::Shared;

/// The engine's platform.
#[derive(Clone)]
pub struct Hosted {
    pub(super) shared: Arc<Shared>,
    pub(super) vmids: Option<&'static Vmids<'static>>,
}

impl Hosted {
    /// The same, for trees that share these VMIDs.
    #[must_use]
    pub fn sharing(self, vmids: &'static Vmids<'static>) -> Self {
        Self { vmids: Some(vmids), ..self }
    }

    fn event(&self, body: impl FnOnce(&mut Model, usize) -> Outcome) {
        Context::current(|context| context.event(body));
    }
}

// SAFETY: `pointer` and `metadata` are the arena's, which lives as long as any clone of this platform. Its memory is
// accessed by atomics only, and each frame has metadata of its own.
unsafe impl Platform for Hosted {
    fn vmids(&self) -> Option<&Vmids<'_>> {
        self.vmids
    }

    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.event(|model, cpu| model.tlbi(cpu, operation, operand));
    }

    fn dsb(&self, domain: Domain) {
        Context::current(|context| {
            context.point();
            // An access that began under an old entry ends before the barrier does.
            if domain == Domain::Ish {
                while context.silently(|model, cpu| Ok(model.waits_for_accesses(cpu))) {
                    context.pass();
                }
            }
            context.silently(|model, cpu| {
                model.dsb(cpu, domain);
                Ok(())
            });
        });
    }

    fn isb(&self) {
        self.event(Model::isb);
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        let line = match operation {
            Dc::Civac => self.shared.options.features.data_line,
            Dc::Zva => self.shared.options.features.zero_block,
        };
        // SAFETY: the caller promises it.
        unsafe { self.dc_lines(operation, address & !(line as usize - 1), line, line) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, _: u64) {
        let Some(pa) = self.shared.arena.pa_of(start) else { return };
        if operation == Dc::Zva {
            for offset in (0..size).step_by(8) {
                if let Some(word) = self.shared.arena.word(pa + offset) {
                    zero(word, pa + offset);
                }
            }
            Context::current(|context| context.trace(Event::Dc { operation: trace::Dc::Zva, pa: pa.raw(), size }));
        } else {
            self.event(|model, cpu| model.clean(cpu, pa.raw(), size));
        }
    }

    fn ic(&self, operation: Ic, address: usize) {
        let line = self.shared.options.features.instruction_line;
        let range = self.shared.arena.pa_of(address).map(|pa| (pa.raw() & !(line - 1), line));
        self.event(|model, cpu| {
            model.ic(cpu, operation, range);
            Ok(())
        });
    }

    fn vttbr(&self) -> u64 {
        Context::current(|context| context.silently(|model, cpu| Ok(model.cpus[cpu].vttbr))).unwrap_or(0)
    }

    fn load_vttbr(&self, value: u64) {
        self.event(|model, cpu| {
            model.load_vttbr(cpu, value);
            Ok(())
        });
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.shared.arena.pointer(pa).unwrap_or_else(|| panic!("the machine has no memory at {pa}"))
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.shared.arena.metadata(pa).unwrap_or_else(|| panic!("the frame at {pa} has no metadata"))
    }

    /// Reports a breach (R18) on a CPU of the machine. On another thread the machine has ended, and frees all memory.
    fn abandoned(&self, root: Pa) {
        if !thread::panicking() {
            let what = format!("the tables at {root} were dropped instead of destroyed");
            Context::current(|context| -> () { context.report(Broken::new(Rule::Dropped, what)) });
        }
    }

    fn pause(&self, _: u32) {
        if Context::current(Context::pass).is_none() {
            thread::yield_now();
        }
    }
}

/// Zeroes a word as `DC ZVA` does. In a table, it is an entry. In a frame, it is data, which the engine reports as a
/// whole.
fn zero(word: &AtomicU64, pa: Pa) {
    let done = Context::current(|context| {
        context.silently(|model, cpu| {
            if model.tables.of(pa.raw()).is_none() {
                word.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let (step, site) = (model.step, context.site.get());
            let (old, moment) = model.cells.store(cpu, word, 0, Ordering::Relaxed, step);
            model.written(cpu, pa.raw(), (old, 0), moment, site)
        });
    });
    if done.is_none() {
        word.store(0, Ordering::Relaxed);
    }
}
