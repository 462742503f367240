// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's commands (`docs/control.md`): the work of the control channel's task, in pieces.
//!
//! The task is woken by the port's interrupt, and by a guest whose state has changed. It reads until there is nothing more.
//! So it costs nothing while the launcher is silent and no guest changes.
//!
//! What each command does to a guest is decided by [`twofold_vmm::life`], and carried out by [`Vm`]. Here is when it is
//! answered: a stop when the guest is stopped, statistics after the last figure, a command for all of the guest's RAM after
//! the last piece, and each other one when it is decided. A command without a guest is carried out on each guest that is in a
//! state for it, and refused if there is none.
//!
//! Invariants: each command is answered once. A piece of the work answers one command, sends `FIGURES` figures or a frame of
//! content, saves a part of a guest ([`saved`](crate::vm::saved)), or is a piece of a sweep ([`sweep`](crate::vm::sweep)).

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;

use arrayvec::{ArrayString, ArrayVec};
use twofold_abi::channel::wire::{COMMANDS_MAX, KEY_MAX};
use twofold_abi::channel::{Command, GuestState, Reason};
use twofold_vmm::console::Console;
use twofold_vmm::session::{Asked, Guests, PART_MAX};

use crate::channel::{self, Polled};
use crate::schedule::cpu::Progress;
use crate::vm::absent::{Filled, Listed};
use crate::vm::commanded::Quit;
use crate::vm::saved::Unsaved;
use crate::vm::saved_pages::{Looked, PageError, Reading, Writing};
use crate::vm::sweep::Sweep;
use crate::vm::{self, Vm};
use crate::{consoles, heap, read_sysreg, stats};
use sweeping::{Sweeping, refuse_sweep};

mod sweeping;

/// What is done for the launcher.
pub(crate) struct Commands {
    guests: All,
    under_way: ArrayVec<UnderWay, COMMANDS_MAX>,
}

/// The guests as the launcher sees them.
#[derive(Clone, Copy)]
struct All(&'static [Vm]);

/// A command that was carried out in part.
enum UnderWay {
    /// It is answered when no guest that it names is about to stop.
    Stop(Asked),
    /// The next piece of a sweep.
    Sweep(Sweeping),
    /// The next bytes of the answer to `save`, `read`, `written` or `frames`.
    Content(Answer),
    /// A page that is read in the guest's store.
    Read(Asked, Reading),
    /// A page that is written when there is room for it.
    Write(Asked, Writing),
    /// The next row of a list of pages.
    List(Asked, Listed, u8, usize),
    /// A page that has come, and is taken when there is room for it.
    Fill(Asked, u32),
    /// It is answered when an absent page is needed, or none is absent.
    Wanted(Asked),
    /// What comes next of this guest.
    Statistics { asked: Asked, guest: usize, next: Next, found: Found },
}

/// What was found in a guest for its statistics.
#[derive(Clone, Copy, Default)]
struct Found {
    /// Leaves by level.
    leaves: [u64; 4],
    /// Pages that were accessed.
    accessed: u64,
    /// [`Vm::working_set`]
    working_set: Option<u64>,
}

/// Content that is sent in parts.
struct Answer {
    asked: Asked,
    /// The part of the guest's sections that comes next; `None`: all is here.
    next: Option<usize>,
    bytes: Vec<u8>,
    /// How many of them were sent.
    sent: usize,
}

/// A part of a guest's statistics.
#[derive(Clone, Copy)]
enum Next {
    /// Its dirty log is collected, from this page on.
    Collect(u64),
    /// Its leaves are counted, from this page on.
    Leaves(u64),
    /// Its accesses are counted, from this page on.
    Accesses(u64),
    /// The figure at this place is sent.
    Figure(usize),
}

impl Next {
    const FIRST: Self = Self::Collect(0);
}

/// Figures that are sent at once.
const FIGURES: usize = 4;

impl Commands {
    pub(crate) fn new(guests: &'static [Vm]) -> Self {
        Self { guests: All(guests), under_way: ArrayVec::new() }
    }

    /// A piece of the work.
    pub(crate) fn work(&mut self) -> Progress {
        let guests = self.guests;
        let mut has_more = false;
        for vm in guests.0 {
            has_more |= vm.settle();
        }
        // One command at a time, in turn: a piece of the work is bounded however many there are.
        if let Some(first) = self.under_way.pop_at(0) {
            self.under_way.extend(first.piece(guests));
        }
        // A stop that waits for a restart goes on when the restart wakes this task.
        has_more |= self.under_way.iter().any(|command| !command.waits(guests));
        match channel::poll(&guests) {
            // Answers come first: nothing is left that can be answered now.
            Polled::Nothing if !has_more => return consoles::send(&guests),
            Polled::Nothing | Polled::More => {}
            Polled::Command(asked) if self.under_way.is_full() => {
                refuse(asked, Reason::Busy, format_args!("{COMMANDS_MAX} commands are under way"));
            }
            Polled::Command(asked) => self.under_way.extend(begin(asked, guests)),
        }
        Progress::More
    }
}

impl UnderWay {
    /// Whether its next piece has to wait for a guest.
    fn waits(&self, guests: All) -> bool {
        match self {
            Self::Stop(asked) => guests.named(asked).any(Vm::is_stopping),
            Self::Wanted(asked) => guests.named(asked).any(Vm::wants_nothing),
            _ => false,
        }
    }

    /// A piece of the work; `None`: the command is answered.
    fn piece(self, guests: All) -> Option<Self> {
        if self.waits(guests) {
            return Some(self);
        }
        match self {
            Self::Stop(asked) => {
                let has_ended = |vm: &Vm| matches!(vm.state(), GuestState::Off | GuestState::Failed);
                if asked.guest().is_some() && guests.named(&asked).any(has_ended) {
                    refuse(asked, Reason::State, format_args!("the guest ended before it was stopped"));
                } else {
                    done(asked);
                }
                None
            }
            Self::Sweep(sweeping) => sweeping.piece(guests),
            Self::Content(answer) => answer.piece(guests),
            Self::Read(asked, page) => have_read(asked, Some(page.look())),
            Self::Write(asked, page) => {
                let written = page.look(asked.content());
                wrote(asked, Some(written))
            }
            Self::List(asked, listed, memslot, row) => {
                let taken = one(&asked, guests).map(|vm| vm.take_listed(listed, memslot, asked.content(), row));
                match taken {
                    Some(Ok(true)) => return Some(Self::List(asked, listed, memslot, row + 1)),
                    taken => settle(asked, taken.map(|taken| taken.map(drop).map_err(|why| why.to_string()))),
                }
                None
            }
            Self::Fill(asked, page) => {
                match one(&asked, guests).map(|vm| vm.fill(page, asked.content())) {
                    // The guest's task makes room.
                    Some(Ok(Filled::NoFrame)) => return Some(Self::Fill(asked, page)),
                    taken => settle(asked, taken.map(|taken| taken.map(drop).map_err(|why| why.to_string()))),
                }
                None
            }
            Self::Wanted(asked) => {
                let pages = one(&asked, guests).map(Vm::wanted);
                content(asked, pages)
            }
            Self::Statistics { asked, guest, next, mut found } => {
                let Some(vm) = guests.0.get(guest) else {
                    done(asked);
                    return None;
                };
                let next = match next {
                    Next::Collect(page) => {
                        // Most guests have no log, and a guest that is off cannot be swept.
                        let swept = vm.sweep(Sweep::Collect, page).ok();
                        swept.and_then(|swept| swept.next).map_or(Next::Leaves(0), Next::Collect)
                    }
                    Next::Leaves(page) => {
                        let next = match vm.leaves(page) {
                            Some((more, next)) => {
                                found.leaves = core::array::from_fn(|level| found.leaves[level] + more[level]);
                                next
                            }
                            None => {
                                found.leaves = [0; 4];
                                None
                            }
                        };
                        match next {
                            Some(page) => Next::Leaves(page),
                            None if vm.begin_accesses() => Next::Accesses(0),
                            None => found.figures(vm),
                        }
                    }
                    Next::Accesses(page) => {
                        let piece = vm.accesses(page);
                        found.accessed += piece.map_or(0, |(more, _)| more);
                        match piece {
                            Some((_, Some(page))) => Next::Accesses(page),
                            Some((_, None)) => {
                                vm.end_accesses(Some(found.accessed));
                                found.figures(vm)
                            }
                            None => {
                                vm.end_accesses(None);
                                found.figures(vm)
                            }
                        }
                    }
                    Next::Figure(place) => return figures(asked, (guest, found), place, guests),
                };
                Some(Self::Statistics { asked, guest, next, found })
            }
        }
    }
}

impl Found {
    /// All was counted: the figures are next.
    fn figures(&mut self, vm: &Vm) -> Next {
        self.working_set = vm.working_set();
        Next::Figure(0)
    }
}

impl All {
    /// The guests that a command names.
    fn named(self, asked: &Asked) -> impl Iterator<Item = &'static Vm> + use<> {
        let number = asked.guest().map(usize::from);
        let all = self.0.iter().enumerate();
        all.filter(move |(index, _)| number.is_none_or(|number| number == *index)).map(|(_, vm)| vm)
    }
}

impl Guests for All {
    fn count(&self) -> u16 {
        self.0.len() as u16
    }

    fn state(&self, guest: u16) -> GuestState {
        self.0.get(usize::from(guest)).map_or(GuestState::Off, Vm::state)
    }

    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        // A task runs, so no vCPU is loaded on this CPU; or a vCPU's guest has ended.
        self.0.get(usize::from(guest))?.devices().console(None, act)
    }
}

/// The last guest has ended: [`consoles::finish`].
pub(crate) fn finish_consoles() {
    consoles::finish(&All(vm::all()));
}

/// Begins to carry out a command. `None`: it is answered.
fn begin(asked: Asked, guests: All) -> Option<UnderWay> {
    let named = guests.named(&asked);
    let carried_out = match asked.command() {
        Command::Statistics => {
            let guest = asked.guest().map_or(0, usize::from);
            return Some(UnderWay::Statistics { asked, guest, next: Next::FIRST, found: Found::default() });
        }
        Command::DirtyStart => return Some(UnderWay::Sweep(Sweeping::begin(asked, Sweep::Start))),
        Command::Dirty => return Some(UnderWay::Sweep(Sweeping::begin(asked, Sweep::Collect))),
        Command::Split => return Some(UnderWay::Sweep(Sweeping::begin(asked, Sweep::Split))),
        Command::Coalesce => return Some(UnderWay::Sweep(Sweeping::begin(asked, Sweep::Coalesce))),
        Command::DirtyStop => {
            match on_each(named, Vm::stop_log) {
                Ok(()) => done(asked),
                Err(why) => refuse_sweep(asked, &why),
            }
            return None;
        }
        Command::Stop => match on_each(named, Vm::stop) {
            Ok(()) => return Some(UnderWay::Stop(asked)),
            Err(why) => Err(why),
        },
        Command::Continue => on_each(named, Vm::go_on),
        Command::Balloon(mebibytes) => {
            match on_each(named, |vm| vm.keep(u64::from(mebibytes) << 20)) {
                Ok(()) => done(asked),
                Err(why) => refuse(asked, Reason::State, format_args!("{why}")),
            }
            return None;
        }
        Command::Reset => on_each(named, Vm::reset_by_command),
        Command::Save => return Answer::begin(asked, Some(0), Vec::new()),
        Command::Read(page) => {
            let read = one(&asked, guests).map(|vm| vm.read_page(page));
            return have_read(asked, read);
        }
        Command::Frames(page) => {
            let frames = one(&asked, guests).map(|vm| vm.frames(page));
            return content(asked, frames);
        }
        Command::Track(track) => {
            let taken = one(&asked, guests).map(|vm| vm.track(track).map_err(|why| why.to_string()));
            settle(asked, taken);
            return None;
        }
        Command::Written(memslot) => {
            let mut written = Vec::new();
            let pages = one(&asked, guests).map(|vm| vm.written(memslot, &mut written).map(|()| written));
            return content(asked, pages);
        }
        Command::Clear(memslot) => {
            let taken = one(&asked, guests).map(|vm| vm.clear(memslot, asked.content()).map_err(|why| why.to_string()));
            settle(asked, taken);
            return None;
        }
        Command::Absent(memslot) => return Some(UnderWay::List(asked, Listed::Absent, memslot, 0)),
        Command::Zero(memslot) => return Some(UnderWay::List(asked, Listed::Zero, memslot, 0)),
        Command::Fill(page) => return UnderWay::Fill(asked, page).piece(guests),
        Command::Wanted => return Some(UnderWay::Wanted(asked)),
        Command::Restore => {
            let taken = one(&asked, guests).map(|vm| vm.restore(asked.content()).map_err(|why| why.to_string()));
            settle(asked, taken);
            return None;
        }
        Command::Write(page) => {
            let written = one(&asked, guests).map(|vm| vm.write_page(page, asked.content()));
            return wrote(asked, written);
        }
        Command::Quit => {
            let mut quit: ArrayVec<Quit<'_>, { twofold_abi::bundle::VCPUS_MAX as usize }> = ArrayVec::new();
            let carried_out = on_each(named, |vm| vm.quit().map(|one| quit.push(one)));
            if carried_out.is_ok() {
                // The image ends with the last guest, so this is the answer's last chance.
                done(asked);
                quit.into_iter().for_each(Quit::end);
                return None;
            }
            carried_out
        }
    };
    match carried_out {
        Ok(()) => done(asked),
        Err(why) => refuse(asked, Reason::State, format_args!("{why}")),
    }
    None
}

impl Answer {
    fn begin(asked: Asked, next: Option<usize>, bytes: Vec<u8>) -> Option<UnderWay> {
        Some(UnderWay::Content(Self { asked, next, bytes, sent: 0 }))
    }

    /// A piece: a part of the guest's sections is made, or sent. `None`: the command is answered.
    fn piece(mut self, guests: All) -> Option<UnderWay> {
        if let Some(bytes) = self.bytes.get(self.sent..).filter(|bytes| !bytes.is_empty()) {
            let bytes = &bytes[..bytes.len().min(PART_MAX)];
            let _ = channel::with_session(|session, launcher| self.asked.part(bytes, session, launcher));
            self.sent += bytes.len();
            return Some(UnderWay::Content(self));
        }
        let Some(part) = self.next else {
            done(self.asked);
            return None;
        };
        (self.bytes, self.sent) = (Vec::new(), 0);
        match one(&self.asked, guests).map(|vm| vm.save(part, &mut self.bytes)) {
            Some(Ok(has_more)) => {
                self.next = has_more.then_some(part + 1);
                Some(UnderWay::Content(self))
            }
            // The disk ends what it works on by itself, and nothing new begins.
            Some(Err(Unsaved::Busy)) => Some(UnderWay::Content(self)),
            Some(Err(why)) => {
                refuse(self.asked, Reason::State, format_args!("{why}"));
                None
            }
            None => {
                refuse_all(self.asked);
                None
            }
        }
    }
}

/// The guest that a command is for, which is for one.
fn one(asked: &Asked, guests: All) -> Option<&'static Vm> {
    guests.0.get(usize::from(asked.guest()?))
}

/// Begins to send what was found in the one guest of a command.
fn content<E: core::fmt::Display>(asked: Asked, found: Option<Result<Vec<u8>, E>>) -> Option<UnderWay> {
    match found {
        Some(Ok(bytes)) => return Answer::begin(asked, None, bytes),
        Some(Err(why)) => refuse(asked, Reason::State, format_args!("{why}")),
        None => refuse_all(asked),
    }
    None
}

/// Answers with what was read of a page, or waits for the guest's store. A page of zeroes has no bytes.
fn have_read(asked: Asked, read: Option<Result<Looked<Vec<u8>, Reading>, PageError>>) -> Option<UnderWay> {
    match read {
        Some(Ok(Looked::Later(page))) => Some(UnderWay::Read(asked, page)),
        Some(Ok(Looked::Done(bytes))) => Answer::begin(asked, None, bytes),
        Some(Err(why)) => content::<PageError>(asked, Some(Err(why))),
        None => content::<PageError>(asked, None),
    }
}

/// Answers when a page is written, or waits for room for it. `None`: there is no such guest.
fn wrote(asked: Asked, written: Option<Result<Looked<(), Writing>, PageError>>) -> Option<UnderWay> {
    let written = match written {
        Some(Ok(Looked::Later(page))) => return Some(UnderWay::Write(asked, page)),
        Some(Ok(Looked::Done(()))) => Some(Ok(())),
        Some(Err(why)) => Some(Err(why.to_string())),
        None => None,
    };
    settle(asked, written);
    None
}

/// Answers a command that is for one guest.
fn settle(asked: Asked, done_for: Option<Result<(), String>>) {
    match done_for {
        Some(Ok(())) => done(asked),
        Some(Err(why)) => refuse(asked, Reason::State, format_args!("{why}")),
        None => refuse_all(asked),
    }
}

fn refuse_all(asked: Asked) {
    refuse(asked, Reason::Guest, format_args!("name one guest"));
}

/// Carries a command out on each of these guests that is in a state for it.
///
/// # Errors
///
/// None is. This is why not the last one.
fn on_each<E>(
    guests: impl Iterator<Item = &'static Vm>,
    mut command: impl FnMut(&'static Vm) -> Result<(), E>,
) -> Result<(), E> {
    let mut carried_out = Ok(());
    let mut was_for_one = false;
    for vm in guests {
        match command(vm) {
            Ok(()) => was_for_one = true,
            Err(why) => carried_out = Err(why),
        }
    }
    if was_for_one { Ok(()) } else { carried_out }
}

/// Sends the next figures. `None`: these were the last ones, and the command is answered.
fn figures(asked: Asked, (guest, found): (usize, Found), place: usize, guests: All) -> Option<UnderWay> {
    let vm = &guests.0[guest];
    let ((counter, still), (ran, stolen), of_guest) = (vm.counter(), vm.times(), vm.figures());
    let collected = vm.collected();
    let (mut sent, mut index) = (0, 0);
    let _ = channel::with_session(|session, launcher| {
        let mut figure = |group: &str, name: &str, value: u64| {
            if (place..place + FIGURES).contains(&index) {
                let mut key: ArrayString<KEY_MAX> = ArrayString::new();
                // The keys are in the source, and short.
                if write!(key, "{group}.{name}").is_ok() {
                    asked.figure(Some(guest as u16), &key, value, session, launcher);
                }
                sent += 1;
            }
            index += 1;
        };
        figure("counter", "now", counter);
        figure("counter", "stopped", still);
        figure("counter", "frequency", read_sysreg!(CNTFRQ_EL0));
        figure("cpu", "ran", ran);
        figure("cpu", "stolen", stolen);
        for (level, name) in stats::LEAVES {
            figure("leaves", name, found.leaves[level]);
        }
        if let Some(pages) = found.working_set {
            figure("pages", "working_set", pages);
        }
        stats::for_each_figure(&of_guest, &mut figure);
        // The last one: a log may start or stop between two pieces.
        if let Some(collected) = collected {
            figure("dirty", "pages", collected);
        }
    });
    if sent == FIGURES {
        return Some(UnderWay::Statistics { asked, guest, next: Next::Figure(place + FIGURES), found });
    }
    if asked.guest().is_none() && guest + 1 < guests.0.len() {
        return Some(UnderWay::Statistics { asked, guest: guest + 1, next: Next::FIRST, found: Found::default() });
    }
    let free = free_frames(guests);
    let _ = channel::with_session(|session, launcher| {
        if asked.guest().is_none() {
            asked.figure(None, "heap.grown", heap::grown(), session, launcher);
            asked.figure(None, "memory.free", free * 4096, session, launcher);
            if let Some(now) = crate::cpus::looks().now() {
                asked.figure(None, "el2_instructions.now", now, session, launcher);
            }
        }
        asked.done(session, launcher);
    });
    None
}

/// Frames of the machine that no guest uses.
fn free_frames(guests: All) -> u64 {
    let own = |vm: &Vm| vm.memory().frames().free();
    let shared = |vm: &Vm| vm.memory().frames().free_to_all(vm.memory().stage2().platform());
    let pooled = |vm: &Vm| vm.memory().frames().free_in_pool();
    let of_all = |free: &dyn Fn(&Vm) -> u64| guests.0.iter().map(free).max().unwrap_or(0);
    // Guests that share frames share the same ones.
    guests.0.iter().map(own).sum::<u64>() + of_all(&shared) + of_all(&pooled)
}

fn done(asked: Asked) {
    // Without a channel there is no launcher that waits.
    let _ = channel::with_session(|session, launcher| asked.done(session, launcher));
}

fn refuse(asked: Asked, reason: Reason, why: core::fmt::Arguments<'_>) {
    let _ = channel::with_session(|session, launcher| asked.refused(reason, why, session, launcher));
}
