// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `replay=EVENTS`: random events at the interrupt controller, and a digest of all that the guest sees of it.
//!
//! The program has no model of the controller. It runs twice with one seed, on the machine's own GICv3 and on the
//! hypervisor's, and the host compares the digests. Both runs execute the same events as long as they see the same:
//! an event is chosen from the seed and from what was seen before. `every=N` is the number of events between two
//! digests, and `from=N` the first event with a digest. With `every=1` each event is printed, with what it saw.
//!
//! With a second vCPU, both execute events in turn, in lockstep:
//!
//! * T1 the vCPU that has the turn executes events, which use the [`State`] and both redistributors;
//! * T2 it stores the next vCPU's number in [`TURN`] (release);
//! * T3 the other vCPU loads its own number there (acquire), and executes events.
//!
//! Only the vCPU that has the turn uses the state, by T2 and T3. Interrupts stay masked (PSTATE).
//!
//! An event may need the other vCPU's CPU: a hypervisor makes it leave its guest, to take back what its list registers
//! hold. The architecture gives such an event any finite time. So after T1 the vCPUs settle it:
//!
//! * S1 the vCPU stores the event's number in [`ASKED`] (release);
//! * S2 the other vCPU, which polls for T3, copies the number to [`ANSWERED`] (release);
//! * S3 the vCPU waits for it there (acquire), and only then looks at what the event did.
//!
//! QEMU interrupts a CPU at the first block of instructions that it starts after the interrupt was raised, and the branch
//! between load and store in S2 ends a block. So what T1 raised at the other CPU was handled there before S2, and
//! what that raised here is handled before the first instruction after S3.

mod access;
mod act;
mod choose;
mod event;
mod known;
mod state;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

use crate::vcpus;
pub use state::Settings;
use state::State;

/// Why the events cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("vCPU 1 cannot be started: PSCI CPU_ON returned {0}")]
    NotStarted(i64),
    #[error("the clock's interrupt did not come at the time that it was set to")]
    Clock,
}

/// Executes the events on one vCPU, or on the first two.
pub fn run(tree: Fdt<'static>, settings: Settings) -> Result<(), Failure> {
    let count = tree.find_node("/cpus").map_or(1, |cpus| cpus.children().filter(is_cpu).count());
    let vcpus = count.clamp(1, VCPUS);
    // SAFETY: this vCPU has the turn, and no other one runs.
    let state = unsafe { &mut *STATE.0.get() };
    *state = State::new(settings, vcpus);
    if !act::raise_devices() {
        return Err(Failure::Clock);
    }
    if vcpus > 1 {
        vcpus::prepare(0, partner);
        let answer = vcpus::start(0, 1);
        if answer != 0 {
            return Err(Failure::NotStarted(answer));
        }
    }
    act::set_up(state);
    take_turns(0);
    // SAFETY: the last turn is vCPU 0's.
    unsafe { &*STATE.0.get() }.print_end();
    Ok(())
}

/// The most vCPUs that execute events.
const VCPUS: usize = 2;

/// The vCPU that may use [`STATE`], or [`OVER`].
static TURN: AtomicUsize = AtomicUsize::new(0);
/// No event is left: vCPU 1 ends.
const OVER: usize = usize::MAX;
static STATE: Shared = Shared(UnsafeCell::new(State::new(NOTHING, 1)));

/// S1 and S2.
static ASKED: AtomicU64 = AtomicU64::new(0);
static ANSWERED: AtomicU64 = AtomicU64::new(0);

const NOTHING: Settings = Settings { events: 0, from: 1, every: 1, seed: 0 };

struct Shared(UnsafeCell<State>);

// SAFETY: only the vCPU that has the turn uses it (T1 to T3).
unsafe impl Sync for Shared {}

/// The second vCPU.
extern "C" fn partner(_: usize) {
    take_turns(1);
}

/// Executes the next event on this vCPU.
fn step(state: &mut State, vcpu: usize) {
    state.begin();
    let event = choose::event(&mut state.known, vcpu, state.vcpus);
    act::execute(state, vcpu, event);
    if state.vcpus > 1 && event.may_need_others() {
        settle(state.done + 1);
    }
    act::look(state, vcpu);
    state.finish(vcpu, event);
}

/// S1 and S3.
fn settle(event: u64) {
    ASKED.store(event, Ordering::Release);
    while ANSWERED.load(Ordering::Acquire) != event {
        core::hint::spin_loop();
    }
}

/// S2.
fn answer() {
    let asked = ASKED.load(Ordering::Acquire);
    if asked != ANSWERED.load(Ordering::Relaxed) {
        ANSWERED.store(asked, Ordering::Release);
    }
}

/// T1 to T3.
fn take_turns(vcpu: usize) {
    loop {
        loop {
            match TURN.load(Ordering::Acquire) {
                OVER => return,
                turn if turn == vcpu => break,
                _ => answer(),
            }
        }
        // SAFETY: T3: this vCPU has the turn.
        let state = unsafe { &mut *STATE.0.get() };
        act::open(state, vcpu);
        let next = loop {
            if state.done == state.settings.events {
                break OVER;
            }
            step(state, vcpu);
            if state.vcpus > 1 && state.known.random.next() % 8 == 0 {
                break 1 - vcpu;
            }
        };
        TURN.store(next, Ordering::Release);
    }
}

fn is_cpu(node: &dtoolkit::fdt::FdtNode<'_>) -> bool {
    node.property("device_type").is_some_and(|kind| kind.value_as::<&str>() == Ok("cpu"))
}
