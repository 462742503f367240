// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The life of a guest ([`twofold_vmm::life`]) as all CPUs see it, and how its vCPUs are stopped and go on.
//!
//! # Stop
//!
//! - H1. The task of the control channel changes the life to *stopping*, which `Shared::is_halted` shows from then on.
//! - H2. It kicks each CPU that has a vCPU of the guest loaded (`GuestGic::kick_all`).
//! - H3. Each vCPU leaves its CPU. A turn that is about to enter the guest for the first time looks after T2. A turn in T4
//!   looks when it has taken the SGI. A turn that begins later looks before T1, and blocks the vCPU.
//! - H4. The task takes the lock of each vCPU once, in pieces, without waiting (`Vm::has_turns`).
//! - H5. It reads the time, and changes the life to *stopped*: the counters stand still from this time on. Then it answers.
//!
//! **No vCPU runs after H5.** A turn holds its vCPU's lock from before its first look to T7. If it took the lock before H4
//! got it, H4 waited for its end. If it took the lock after H4, it sees H1, because H4 gave it the lock, and enters no
//! guest.
//!
//! **H4 comes to its end.** A turn that had loaded its vCPU in T2 before H2 took the controller's lock is kicked: the SGI is
//! an exit, or stays pending until the next entry (V1 to V3 of `gic::guest`), and then the turn looks. A turn that comes to
//! T2 later gets the controller's lock from H2, so it sees H1 at its look after T2.
//!
//! **No counter goes back.** Each time that a vCPU read was read before its turn ended, so before H5 reads the time.
//!
//! # Continue
//!
//! - G1. The task waits for the beginning of a tick (`tick`), reads the time, and changes the life to *running*: first the
//!   offset of the counters grows by the time since H5, then `is_halted` is false.
//! - G2. It wakes all vCPUs of the guest.
//! - G3. A turn that begins sees G1, and loads the counters with the new offset in T1.
//!
//! **Each turn has one offset.** A turn reads the offset after it saw that the guest is not halted, so after the G1 of that
//! life; and the next G1 comes after an H4 that waits for the turn.
//!
//! **No wake is lost.** What comes while the guest is stopped changes the model of the device or of the interrupt controller
//! (C1), and wakes the vCPU (C3), whose turn finds the guest halted and blocks it again: that wake is used up. G2 repeats it
//! for every vCPU, after G1. If the turn that looked before G1 has not blocked the vCPU yet, G2 leaves the scheduler's mark
//! (W2 before B2), and the vCPU has another turn. T2 puts what is pending into list registers, and compares the timers with
//! the new offset. So a timer is due by the guest's time. A deadline that was computed with the old offset is removed when
//! the turn begins; one that is left on another CPU wakes the vCPU once without a reason. So does G2 itself, for a vCPU in
//! WFI or in CPU_SUSPEND: both may end without one.
//!
//! A stop during a reset takes none of these steps: the restart's R1 has them. It is complete at R7, which finds the
//! command, changes the life to *stopped* and wakes nothing. G2 then wakes the first vCPU.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use spin::Mutex;
use twofold_vmm::life::Life;

use crate::timer;

/// The life of one guest.
///
/// The lock is held for one change. No other lock is taken under it, and it may be taken under any.
pub(crate) struct Shared {
    life: Mutex<Life>,
    /// Not [`Life::may_run`].
    is_halted: AtomicBool,
    /// [`Life::offset`].
    offset: AtomicU64,
}

impl Shared {
    /// A guest that runs, and whose counters begin now; or one that comes from elsewhere, and is stopped.
    pub(crate) fn new(is_incoming: bool) -> Self {
        let begins = if is_incoming { Life::incoming } else { Life::new };
        let life = begins(timer::machine_time());
        let (offset, is_halted) = (AtomicU64::new(life.offset()), AtomicBool::new(!life.may_run()));
        Self { life: Mutex::new(life), is_halted, offset }
    }

    /// Whether no vCPU may run.
    #[inline(always)]
    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Acquire)
    }

    /// How far the guest's counters are behind the machine's.
    #[inline(always)]
    pub(crate) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Calls `change` with the life and the machine's time, which is read under the lock.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Life, u64) -> T) -> T {
        let mut life = self.life.lock();
        let changed = change(&mut life, timer::machine_time());
        self.offset.store(life.offset(), Ordering::Relaxed);
        self.is_halted.store(!life.may_run(), Ordering::Release);
        changed
    }
}
