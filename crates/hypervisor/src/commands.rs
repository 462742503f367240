// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's commands (`docs/control.md`): the work of the control channel's task, in pieces.
//!
//! The task is woken by the port's interrupt, and by a guest whose state has changed. It reads until there is nothing more.
//! So it costs nothing while the launcher is silent and no guest changes.
//!
//! What each command does to a guest is decided by [`twofold_vmm::life`], and carried out by [`Vm`]. Here is when it is
//! answered: a stop when the guest is stopped, statistics after the last figure, and each other one when it is decided. A
//! command without a guest is carried out on each guest that is in a state for it, and refused if there is none.
//!
//! Invariants: each command is answered once. A piece of the work answers one command, or sends `FIGURES` figures.

use core::fmt::Write;

use arrayvec::{ArrayString, ArrayVec};
use twofold_abi::channel::wire::{COMMANDS_MAX, KEY_MAX};
use twofold_abi::channel::{Command, GuestState, Reason};
use twofold_vmm::console::Console;
use twofold_vmm::life::NotNow;
use twofold_vmm::session::{Asked, Guests};

use crate::channel::{self, Polled};
use crate::schedule::cpu::Progress;
use crate::vm::commanded::Quit;
use crate::vm::{self, Vm};
use crate::{consoles, heap, read_sysreg, stats};

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
    /// The next figure is the one at this place, of this guest.
    Statistics { asked: Asked, guest: usize, place: usize },
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
        matches!(self, Self::Stop(asked) if guests.named(asked).any(Vm::is_stopping))
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
            Self::Statistics { asked, guest, place } => figures(asked, guest, place, guests),
        }
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
            return Some(UnderWay::Statistics { asked, guest, place: 0 });
        }
        Command::Stop => match on_each(named, Vm::stop) {
            Ok(()) => return Some(UnderWay::Stop(asked)),
            Err(why) => Err(why),
        },
        Command::Continue => on_each(named, Vm::go_on),
        Command::Reset => on_each(named, Vm::reset_by_command),
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

/// Carries a command out on each of these guests that is in a state for it.
///
/// # Errors
///
/// None is. This is why not the last one.
fn on_each(
    guests: impl Iterator<Item = &'static Vm>,
    mut command: impl FnMut(&'static Vm) -> Result<(), NotNow>,
) -> Result<(), NotNow> {
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
fn figures(asked: Asked, guest: usize, place: usize, guests: All) -> Option<UnderWay> {
    let Some(vm) = guests.0.get(guest) else {
        done(asked);
        return None;
    };
    let ((counter, still), (ran, stolen), of_guest) = (vm.counter(), vm.times(), vm.figures());
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
        stats::for_each_figure(&of_guest, figure);
    });
    if sent == FIGURES {
        return Some(UnderWay::Statistics { asked, guest, place: place + FIGURES });
    }
    if asked.guest().is_none() && guest + 1 < guests.0.len() {
        return Some(UnderWay::Statistics { asked, guest: guest + 1, place: 0 });
    }
    let _ = channel::with_session(|session, launcher| {
        if asked.guest().is_none() {
            asked.figure(None, "heap.grown", heap::grown(), session, launcher);
        }
        asked.done(session, launcher);
    });
    None
}

fn done(asked: Asked) {
    // Without a channel there is no launcher that waits.
    let _ = channel::with_session(|session, launcher| asked.done(session, launcher));
}

fn refuse(asked: Asked, reason: Reason, why: core::fmt::Arguments<'_>) {
    let _ = channel::with_session(|session, launcher| asked.refused(reason, why, session, launcher));
}
