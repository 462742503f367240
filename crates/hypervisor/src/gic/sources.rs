// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's interrupts that EL2 takes, by their INTIDs.

use thiserror::Error;

use crate::board::{Board, Shared, intid};

/// The interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The virtual timer, which a guest programs by itself.
    pub virtual_timer: u32,
    /// The physical timer. A guest programs it by itself only on a CPU that can give it an offset.
    pub physical_timer: u32,
    /// Whether this machine's CPUs can do that.
    pub physical_timer_is_linked: bool,
    /// EL2's own timer.
    pub own_timer: u32,
    /// The virtual interface asks for EL2.
    pub maintenance: u32,
    /// The UART has received something, or can send again.
    pub uart: u32,
    /// The control channel's port has something to say. `None` until the port is known, and on a machine without one.
    pub port: Option<Shared>,
}

/// The device tree does not name an interrupt.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("this machine's device tree does not name the interrupt of {0}")]
pub struct NoInterrupt(&'static str);

/// The SGI by which a CPU makes another one leave its guest.
pub const KICK: u32 = 0;

impl Sources {
    /// The private ones, without the physical timer if that is not linked.
    pub fn private(&self) -> impl Iterator<Item = u32> {
        let timer = self.physical_timer_is_linked.then_some(self.physical_timer);
        [self.virtual_timer, self.own_timer, self.maintenance].into_iter().chain(timer)
    }

    /// Reads them from the device tree. `has_offset` says whether the CPUs have an offset for the physical timer.
    ///
    /// # Errors
    ///
    /// [`NoInterrupt`].
    pub fn of(board: &Board, has_offset: bool) -> Result<Self, NoInterrupt> {
        // The order of a timer's interrupts is fixed: secure, non-secure, virtual, hypervisor.
        let timer = |index, name| intid(&board.timer_interrupts, index).ok_or(NoInterrupt(name));
        Ok(Self {
            physical_timer: timer(1, "the physical timer")?,
            physical_timer_is_linked: has_offset,
            virtual_timer: timer(2, "the virtual timer")?,
            own_timer: timer(3, "EL2's timer")?,
            maintenance: intid(&board.maintenance_interrupt, 0).ok_or(NoInterrupt("the GIC's virtual interface"))?,
            uart: intid(&board.uart_interrupts, 0).ok_or(NoInterrupt("the UART"))?,
            port: None,
        })
    }
}
