// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU in its guest: accesses through both stages, by an entry that TLBs may hold or by a walk.
//!
//! An access has two halves, the translation and the memory access, between which other CPUs run. A barrier that
//! completes an invalidation waits for accesses that are between their halves.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use twofold_abi::trace::Event;
use twofold_stage2::{Ipa, Pa};

use super::breach::{Change, Rule};
use super::clock::Clock;
use super::context::Context;
use super::machine::CpuHandle;
use super::model::{Broken, Model, Outcome};
use super::shape::{ACCESSED, DIRTY_BY_HARDWARE, WRITE};
use super::stale::{Kind, Stale};
use super::tables::Standing;
use crate::interrupts::{Interrupts, Line};
use crate::program::{Abort, Exit, Instructions, Stage1Registers, State};
use crate::walk::stage1::{self, GuestTables};
use crate::walk::stage2::{self, Entries, Regime, Stage2Fault};
use crate::walk::{Access, AccessKind, El, FaultKind, syndrome};

/// A vCPU in its guest.
pub struct StrictVcpu<'a> {
    cpu: &'a CpuHandle,
    /// The place in the source that entered it.
    entered: &'static Location<'static>,
    regime: Regime,
    vttbr: u64,
    vtcr: u64,
    vmid: u16,
    vcpu: u32,
    state: State,
    interrupts: Arc<Interrupts>,
    /// The last access that faulted.
    faulted: Option<Faulted>,
    between: Option<Box<dyn FnMut() + Send + 'a>>,
}

/// An access that faulted: the number of times in a row, and the stale entry that it hit, by its address and step.
#[derive(Clone, Copy)]
struct Faulted {
    va: u64,
    kind: AccessKind,
    stale: Option<(u64, u64)>,
    times: u32,
}

/// The number of faults in a row after which an access makes no progress, although each fault was handled.
const MOST_FAULTS: u32 = 64;

impl CpuHandle {
    /// Enters a guest as one of its vCPUs, with these values of `VTTBR_EL2` and `VTCR_EL2`. The `ERET` synchronizes the
    /// context.
    ///
    /// # Panics
    ///
    /// The registers have values that the engine never uses.
    #[track_caller]
    pub fn enter(&self, vttbr: u64, vtcr: u64, vcpu: u32) -> StrictVcpu<'_> {
        let entered = Location::caller();
        let (vmid, features) = self.with_context(|context| {
            context.event(|model, cpu| {
                model.load_vttbr(cpu, vttbr);
                model.synchronize(cpu)?;
                let vmid = model.vmid(vttbr);
                match model.cpus[cpu].vcpus.get(&vmid) {
                    Some(other) if *other != vcpu => {
                        let what = format!("vCPU {vcpu} enters with VMID {vmid}, where vCPU {other} ran last");
                        Err(Broken::new(Rule::OtherVcpu, what))
                    }
                    _ => Ok((vmid, model.features)),
                }
            })
        });
        let regime = Regime::new(vttbr, vtcr, &features);
        let regime = regime.unwrap_or_else(|error| panic!("VTTBR_EL2 {vttbr:#x}, VTCR_EL2 {vtcr:#x}: {error}"));
        let (state, interrupts) = (State::default(), Arc::new(Interrupts::without_time()));
        let (faulted, between) = (None, None);
        StrictVcpu { cpu: self, entered, regime, vttbr, vtcr, vmid, vcpu, state, interrupts, faulted, between }
    }
}

impl<'a> StrictVcpu<'a> {
    /// Answers the hypercall that caused the exit.
    pub fn answer(&mut self, value: u64) {
        self.state.answer = Some(value);
    }

    /// Raises an abort in the guest: the access that caused the exit ends with it when it is repeated.
    pub fn raise(&mut self, abort: Abort) {
        self.state.abort = Some(abort);
        self.forget_fault();
    }

    /// Skips the cache maintenance instruction that caused the exit.
    pub fn skip(&mut self) {
        self.state.skipped = true;
        self.forget_fault();
    }

    /// The state that moves with the vCPU to another CPU.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The vCPU with the state from another CPU, and with its interrupts. Only CPUs of this machine may raise those, so
    /// that equal runs are equal.
    #[must_use]
    pub fn with(self, state: State, interrupts: Arc<Interrupts>) -> Self {
        Self { state, interrupts, ..self }
    }

    /// `AT S1E1R`: returns `PAR_EL1` for `va`, with the IPA in bits 47 to 12, or with bit 0 set if the stage-1 walk
    /// fails.
    pub fn translate_stage1(&mut self, va: u64) -> u64 {
        const FAILED: u64 = 1;
        let Ok(regime) = stage1::Regime::new(&self.state.stage1) else { return FAILED };
        let (context, read) = (&self.cpu.context, Access::new(AccessKind::Read, El::El1));
        context.event(|model, cpu| {
            let mut walker = Walker::new(model, context, cpu, self);
            let leaf = regime.walk(va, read, &mut walker);
            walker.check()?;
            Ok(leaf.map_or(FAILED, |leaf| (leaf.ipa | va & (leaf.size - 1)) & !0xfff))
        })
    }

    /// Runs `body` in each access, between its halves.
    pub fn between_halves(&mut self, body: impl FnMut() + Send + 'a) {
        self.between = Some(Box::new(body));
    }

    /// States that the fault was handled otherwise than by a wider entry: the next access counts as a new one.
    pub fn forget_fault(&mut self) {
        self.faulted = None;
    }

    fn access(&mut self, va: u64, kind: AccessKind, value: u64) -> Result<u64, Exit> {
        if self.interrupts.kicked() != 0 && self.interrupts.take_kick() {
            return Err(Exit::Kicked);
        }
        if let Some(abort) = self.state.abort.take() {
            return Err(Exit::Stage1(abort));
        }
        let context = &self.cpu.context;
        let access = Access::new(kind, El::El1);
        let translated = context.event(|model, cpu| {
            self.come_back(model, cpu)?;
            let translated = self.translate(model, context, cpu, va, access)?;
            model.cpus[cpu].accesses = translated.is_ok();
            if translated.is_ok() {
                model.cpus[cpu].vcpus.insert(self.vmid, self.vcpu);
            } else {
                model.trace.outside();
            }
            Ok(translated)
        });
        let translation = match translated {
            Ok(translation) => translation,
            Err(Failed { exit, stale }) => {
                self.note_fault(va, kind, stale);
                return Err(exit);
            }
        };
        self.faulted = None;
        if let Some(between) = &mut self.between {
            between();
        }
        let result = context.event(|model, cpu| {
            model.cpus[cpu].accesses = false;
            perform(model, cpu, &translation, kind, value)
        });
        context.progress();
        Ok(result)
    }

    /// Returns from the hypervisor, if it changed the context: `ERET` synchronizes it, and the guest runs with the
    /// current `VTTBR_EL2`.
    fn come_back(&mut self, model: &mut Model, cpu: usize) -> Outcome {
        model.synchronize(cpu)?;
        let vttbr = model.cpus[cpu].vttbr;
        if vttbr != self.vttbr {
            let unusable =
                |error| Broken::new(Rule::Content, format!("the guest resumes with VTTBR_EL2 {vttbr:#x}: {error}"));
            self.regime = Regime::new(vttbr, self.vtcr, &model.features).map_err(unusable)?;
            (self.vttbr, self.vmid) = (vttbr, model.vmid(vttbr));
        }
        model.trace.inside(self.vcpu, vttbr, self.entered);
        Ok(())
    }

    /// Counts a fault, and reports an access that faults too often in a row.
    fn note_fault(&mut self, va: u64, kind: AccessKind, stale: Option<(u64, u64)>) {
        let again = self.faulted.filter(|before| (before.va, before.kind) == (va, kind));
        let times = again.map_or(1, |before| before.times + 1);
        if times > MOST_FAULTS {
            let entry = stale.map_or(0, |(entry, _)| entry);
            let by = if stale.is_some() { ", by an entry that TLBs may hold" } else { "" };
            let what = format!("{kind:?} of {va:#x} has faulted {times} times in a row{by}");
            self.cpu.context.report(Broken::new(Rule::NoProgress, what).at(va, &[entry]));
        }
        self.faulted = Some(Faulted { va, kind, stale, times });
    }

    fn translate(
        &self,
        model: &mut Model,
        context: &Context,
        cpu: usize,
        va: u64,
        access: Access,
    ) -> Outcome<Result<Translation, Failed>> {
        let regime = match stage1::Regime::new(&self.state.stage1) {
            Ok(regime) => regime,
            Err(error) => return Err(Broken::new(Rule::Content, format!("the guest's stage 1: {error}"))),
        };
        let regime = regime.with_pa_bits(model.features.pa_bits);
        let mut walker = Walker::new(model, context, cpu, self);
        let leaf = match regime.walk(va, access, &mut walker) {
            Ok(leaf) => leaf,
            Err(stage1::Fault::Stage2(fault, access)) => return walker.failed(&fault, access, va),
            Err(stage1::Fault::Stage1(kind, level)) => {
                walker.check()?;
                let exit = Exit::Stage1(syndrome::stage1(kind, level, access, va));
                return Ok(Err(Failed { exit, stale: None }));
            }
            Err(stage1::Fault::Unmodelled(error)) => {
                return Err(Broken::new(Rule::Content, format!("the guest's stage 1: {error}")));
            }
        };
        let ipa = leaf.ipa + (va - leaf.va);
        match walker.leaf(ipa, access) {
            Ok((pa, raw)) => {
                walker.check()?;
                let forced = walker.model.features.forced_write_back;
                let cached = stage2::is_cached(raw, forced, leaf.cacheable);
                let cacheable = stage2::is_cached(raw, forced, true);
                Ok(Ok(Translation { pa, ipa, cached, cacheable }))
            }
            Err(fault) => walker.failed(&fault, access, va),
        }
    }
}

/// The target of an access.
struct Translation {
    pa: u64,
    ipa: u64,
    cached: bool,
    /// Whether stage 2 lets the access use the cache.
    cacheable: bool,
}

struct Failed {
    exit: Exit,
    /// The stale entry that caused it: its address, and the step of its change.
    stale: Option<(u64, u64)>,
}

/// The second half of an access.
fn perform(model: &mut Model, cpu: usize, to: &Translation, kind: AccessKind, value: u64) -> Outcome<u64> {
    let arena = model.arena.clone();
    let Some(word) = arena.word(Pa::new(to.pa & !7)) else {
        let what = format!("CPU {cpu} reaches {:#x}, where no memory is", to.pa);
        return Err(Broken::new(Rule::Content, what).at(to.ipa, &[]));
    };
    if let Some(page) = model.tables.of(to.pa) {
        let what = format!("a guest reaches {:#x}, which is a table ({:x?})", to.pa, page.standing);
        return Err(Broken::new(Rule::FrameReusedTooEarly, what).at(to.ipa, &[]));
    }
    if to.cached && kind != AccessKind::Maintenance && model.lines.is_hidden(to.pa) {
        let what = format!("{:#x} is used through the cache, and was written past it as memory of another type", to.pa);
        return Err(Broken::new(Rule::HiddenData, what).at(to.ipa, &[]));
    }
    if !to.cacheable && kind != AccessKind::Maintenance && model.lines.is_cached(to.pa) {
        let what = format!("{:#x} is no longer cacheable, and a guest's write to it may still be in the cache", to.pa);
        return Err(Broken::new(Rule::LateWriteBack, what).at(to.ipa, &[]));
    }
    match kind {
        AccessKind::Write => {
            word.store(value, Ordering::Relaxed);
            if to.cached {
                model.lines.write_cached(to.pa);
            } else {
                model.lines.write_past(to.pa, !to.cacheable);
            }
            return Ok(0);
        }
        AccessKind::Read if !to.cached && model.lines.is_dirty(to.pa) => {
            let what = format!("{:#x} is read past the cache, and the hypervisor's write to it is not cleaned", to.pa);
            return Err(Broken::new(Rule::NotCleaned, what).at(to.ipa, &[]));
        }
        AccessKind::Execute if !model.features.instruction_cache_coherent && model.lines.is_old_code(to.pa) => {
            let what = format!("the instruction at {:#x} may be the one before the last write", to.pa);
            return Err(Broken::new(Rule::StaleInstruction, what).at(to.ipa, &[]));
        }
        _ => {}
    }
    Ok(word.load(Ordering::Relaxed))
}

/// Reads tables as a walk on this CPU may see them.
struct Walker<'m, 'g> {
    model: &'m mut Model,
    context: &'m Context,
    cpu: usize,
    guest: &'m StrictVcpu<'g>,
    knows: Clock,
    /// A broken rule that the walk found.
    broken: Option<Box<Broken>>,
    stale: Option<(u64, u64)>,
    /// Whether the access hit entries of two sizes.
    conflict: bool,
}

impl<'m, 'g> Walker<'m, 'g> {
    fn new(model: &'m mut Model, context: &'m Context, cpu: usize, guest: &'m StrictVcpu<'g>) -> Self {
        let knows = model.cells.walk(cpu);
        Self { model, context, cpu, guest, knows, broken: None, stale: None, conflict: false }
    }

    fn check(&mut self) -> Outcome {
        self.broken.take().map_or(Ok(()), Err)
    }

    fn failed(mut self, fault: &Stage2Fault, access: Access, va: u64) -> Outcome<Result<Translation, Failed>> {
        self.check()?;
        if self.conflict {
            return Ok(Err(Failed { exit: Exit::Abort(syndrome::conflict(access, va)), stale: None }));
        }
        Ok(Err(Failed { exit: Exit::Abort(syndrome::stage2(fault, access, va)), stale: self.stale }))
    }

    /// The output address and the descriptor for an address, by a TLB's entry or by a walk.
    fn leaf(&mut self, ipa: u64, access: Access) -> Result<(u64, u64), Stage2Fault> {
        if let Some(stale) = self.pick_stale(ipa) {
            let granted = self.guest.regime.grant(stale.raw, access);
            // A write that needs hardware's update uses the descriptor in memory.
            let as_it_is = granted.is_ok_and(|granted| granted == stale.raw);
            if self.conflicts(&stale, ipa) {
                self.conflict = true;
                return Err(Stage2Fault { kind: FaultKind::Translation, level: stale.level, ipa });
            }
            if as_it_is && stale.kind == Kind::Leaf {
                return Ok((self.model.format.output_from(stale.raw, stale.level, stale.ipa, ipa), stale.raw));
            }
            if granted.is_err() {
                self.stale = Some((stale.entry, stale.step));
                return Err(Stage2Fault { kind: FaultKind::Permission, level: stale.level, ipa });
            }
        }
        self.knows = self.model.cells.walk(self.cpu);
        let regime = self.guest.regime;
        let leaf = regime.walk(ipa, access, self)?;
        Ok((self.model.format.output(leaf.raw, leaf.level, ipa), leaf.raw))
    }

    /// A stale entry for the address that this CPU may hold, or none.
    fn pick_stale(&self, ipa: u64) -> Option<Stale> {
        if self.model.stale.is_empty() {
            return None;
        }
        let range = Ipa::new(ipa)..Ipa::new(ipa + 1);
        let held = |stale: &&Stale| {
            stale.vmid == self.guest.vmid
                && stale.cpus() >> self.cpu & 1 == 1
                && stale.kind != Kind::Table
                && stale.overlaps(&range)
        };
        let candidates: Vec<&Stale> = self.model.stale.iter().filter(held).collect();
        // The TLB holds the entry that the repeated access has already hit.
        if let Some(Faulted { stale: Some(hit), .. }) = self.guest.faulted
            && let Some(stale) = candidates.iter().find(|stale| (stale.entry, stale.step) == hit)
        {
            return Some(**stale);
        }
        if candidates.is_empty() || self.context.draw(2) == 0 {
            return None;
        }
        candidates.get(self.context.draw(candidates.len() as u64) as usize).map(|stale| **stale)
    }

    /// Whether this access takes a conflict abort: it may hit the old entry and a current one of another size.
    fn conflicts(&self, stale: &Stale, ipa: u64) -> bool {
        let now = self.model.leaf_of(stale.root, ipa);
        let resized =
            || now.is_some_and(|(raw, level)| level != stale.level || self.model.regroups(stale.raw, raw, level));
        self.model.bbm.aborts() && resized() && self.context.draw(2) == 0
    }

    /// Where hardware makes an update: for an access flag in a contiguous group, in any descriptor of the group (Arm ARM DDI
    /// 0487K.a, D8.7.1).
    fn recorded_at(&self, pa: u64, old: u64, new: u64) -> (u64, u64, u64) {
        let Some(Standing::Linked(place)) = self.model.tables.of(pa).map(|page| page.standing) else {
            return (pa, old, new);
        };
        if !self.model.is_grouped(old, place.level) || old ^ new != ACCESSED {
            return (pa, old, new);
        }
        let length = self.model.format.group(place.level);
        let other = (pa & !(length * 8 - 1)) + self.context.draw(length) * 8;
        let raw = self.model.read(other);
        let usable = self.model.is_grouped(raw, place.level) && raw & ACCESSED == 0;
        if usable { (other, raw, raw | ACCESSED) } else { (pa, old, new) }
    }

    fn word(&self, pa: u64) -> Option<std::sync::Arc<crate::arena::Arena>> {
        self.model.arena.word(Pa::new(pa)).map(|_| self.model.arena.clone())
    }
}

impl Entries for Walker<'_, '_> {
    fn stage2(&mut self, pa: u64) -> u64 {
        let arena = self.word(pa);
        let Some(page) = self.model.tables.of(pa) else {
            let what = format!("a walk reads {pa:#x}, which is in no table");
            self.broken.get_or_insert_with(|| Broken::new(Rule::TableFreedTooEarly, what).at(0, &[pa]));
            return 0;
        };
        let Some(word) = arena.as_ref().and_then(|arena| arena.word(Pa::new(pa))) else { return 0 };
        let context = self.context;
        let seen = self.model.cells.walk_load(self.cpu, word, &self.knows, &mut |values| context.choose(values));
        let place = match page.standing {
            Standing::Linked(place) | Standing::Unlinked(place, _) | Standing::Closed(place) => {
                place.ipa_of(pa, self.model.format)
            }
            Standing::Loose => 0,
        };
        if page.standing == Standing::Loose || (seen.step < page.taken && !seen.newest) {
            let what = format!("a walk reads {:#x} from {pa:#x}, written before that page became this table", seen.raw);
            self.broken.get_or_insert_with(|| Broken::new(Rule::TableNotReady, what).at(place, &[pa]));
            return 0;
        }
        self.knows = seen.learned;
        seen.raw
    }

    fn update_stage2(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        let arena = self.model.arena.clone();
        let (pa, old, new) = self.recorded_at(pa, old, new);
        let Some(word) = arena.word(Pa::new(pa)) else { return Err(0) };
        let step = self.model.step;
        if let Err(now) = self.model.cells.hardware_update(word, old, new, step) {
            // The walk goes on with the last value, which may lead to a table by now: it has read that value.
            self.knows = self.model.cells.walk_load(self.cpu, word, &self.knows, &mut |_| 0).learned;
            return Err(now);
        }
        self.model.trace.event(Event::Hardware { pa, old, new });
        self.model.note(Change { step, cpu: self.cpu, entry: Pa::new(pa), old, new, site: None });
        debug_assert!(
            (old ^ new) & !(1 << 10 | WRITE) == 0
                && (old & new & WRITE != 0 || old & DIRTY_BY_HARDWARE != 0 || (old ^ new) & WRITE == 0)
        );
        Ok(())
    }
}

impl GuestTables for Walker<'_, '_> {
    fn translate(&mut self, ipa: u64, access: Access) -> Result<u64, Stage2Fault> {
        self.leaf(ipa, access).map(|(pa, _)| pa)
    }

    fn stage1(&mut self, pa: u64) -> u64 {
        self.model.arena.load(Pa::new(pa)).unwrap_or(0)
    }

    fn update_stage1(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        self.model.arena.compare_exchange(Pa::new(pa), old, new).unwrap_or(Err(0)).map(|_| ())
    }
}

impl Instructions for StrictVcpu<'_> {
    fn load(&mut self, va: u64) -> Result<u64, Exit> {
        self.access(va, AccessKind::Read, 0)
    }

    fn store(&mut self, va: u64, value: u64) -> Result<(), Exit> {
        self.access(va, AccessKind::Write, value).map(|_| ())
    }

    fn fetch(&mut self, va: u64) -> Result<u64, Exit> {
        self.access(va, AccessKind::Execute, 0)
    }

    fn clean(&mut self, va: u64) -> Result<(), Exit> {
        if core::mem::take(&mut self.state.skipped) {
            return Ok(());
        }
        self.access(va, AccessKind::Maintenance, 0).map(|_| ())
    }

    fn hypercall(&mut self, arguments: [u64; 4]) -> Result<u64, Exit> {
        self.state.answer.take().ok_or(Exit::Hypercall(arguments))
    }

    fn wait_for_interrupt(&mut self) -> Result<(), Exit> {
        if self.interrupts.take_kick() {
            Err(Exit::Kicked)
        } else if self.interrupts.pending() != 0 {
            Ok(())
        } else {
            Err(Exit::WaitForInterrupt)
        }
    }

    fn take_interrupts(&mut self) -> u64 {
        self.interrupts.take()
    }

    fn counter(&mut self) -> u64 {
        self.interrupts.counter()
    }

    fn set_timer(&mut self, deadline: u64) {
        self.interrupts.set_timer(deadline, Line::TIMER);
    }

    fn stage1(&mut self) -> &mut Stage1Registers {
        &mut self.state.stage1
    }

    fn invalidate_stage1(&mut self) {
        self.cpu.context.point();
    }
}
