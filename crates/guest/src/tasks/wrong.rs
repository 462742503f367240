// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernels that do not keep to `docs/async-page-fault.md`. Their tasks are the usual ones, so the array shows whether the guest
//! itself is as it would be otherwise: a wrong call changes nothing, and a kernel may decline every announcement.

use core::sync::atomic::{AtomicU64, Ordering};

use twofold_abi::async_fault::{
    ACKNOWLEDGE, DISABLE, ENABLE, INVALID_PARAMETER, NO_TOKEN, QUERY, WAKE_ALL, area, flags,
};
use twofold_abi::virt::{FLASH_BASE, GICD_BASE, RTC_BASE, UART_BASE, VIRTIO_BASE};

use super::Failure;
use crate::memory::PAGE;
use crate::psci;

/// What a kernel does that it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Wrong {
    /// Nothing.
    Nothing,
    /// `wrong=calls`: it makes each wrong call, before it enables, at each announcement, and after it has disabled.
    Calls,
    /// `wrong=deaf`: it declines all announcements, and acknowledges no token.
    Deaf,
    /// `wrong=area`: all vCPUs have one area, and each interrupt writes random words there.
    Area,
}

impl Wrong {
    /// The one with this name on the command line.
    pub fn named(name: &str) -> Option<Self> {
        [("calls", Self::Calls), ("deaf", Self::Deaf), ("area", Self::Area)]
            .into_iter()
            .find_map(|(known, wrong)| (known == name).then_some(wrong))
    }

    /// What all vCPUs of this guest do.
    pub fn get() -> Self {
        let number = WRONG.load(Ordering::Relaxed);
        [Self::Calls, Self::Deaf, Self::Area].into_iter().find(|wrong| *wrong as u64 == number).unwrap_or(Self::Nothing)
    }

    /// Sets what all vCPUs do, before the others start.
    pub fn set(self, ram: &core::ops::Range<u64>) {
        for (cell, value) in [(&WRONG, self as u64), (&RAM_START, ram.start), (&RAM_END, ram.end)] {
            cell.store(value, Ordering::Relaxed);
        }
    }
}

static WRONG: AtomicU64 = AtomicU64::new(0);
static RAM_START: AtomicU64 = AtomicU64::new(0);
static RAM_END: AtomicU64 = AtomicU64::new(0);

/// Calls of a vCPU that has nothing enabled, whose area is to be at `own`.
pub fn while_disabled(own: u64) -> Result<(), Failure> {
    let (start, end) = (RAM_START.load(Ordering::Relaxed), RAM_END.load(Ordering::Relaxed));
    let areas = [
        // Misaligned: within the area, and across the end of a page and of RAM.
        own + 1,
        own + 4,
        own + area::SIZE / 2,
        own / PAGE * PAGE + PAGE - area::SIZE / 2,
        end - area::SIZE / 2,
        // Outside RAM.
        end,
        start - area::SIZE,
        FLASH_BASE,
        (1 << 40) + own,
        1 << 63 | own,
        u64::MAX - (area::SIZE - 1),
        u64::MAX,
        // Devices.
        UART_BASE,
        RTC_BASE,
        GICD_BASE,
        VIRTIO_BASE,
    ];
    for wrong in areas {
        refused(ENABLE, wrong, flags::KERNEL)?;
    }
    for wrong in [flags::ALL + 1, flags::KERNEL | 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
        refused(ENABLE, own, wrong)?;
    }
    refused(DISABLE, 0, 0)?;
    for number in [4, 1 << 32, u64::MAX] {
        refused(QUERY, number, 0)?;
    }
    acknowledgements(NO_TOKEN)
}

/// Calls of a vCPU that has enabled the area at `own`, and got `token` as ready, or none.
pub fn while_enabled(own: u64, token: u32) -> Result<(), Failure> {
    for again in [own, own + area::SIZE, UART_BASE] {
        refused(ENABLE, again, flags::KERNEL)?;
    }
    acknowledgements(token)
}

/// Acknowledges tokens that this vCPU was never given, beside `token`.
fn acknowledgements(token: u32) -> Result<(), Failure> {
    let others = [NO_TOKEN, WAKE_ALL, token.wrapping_add(1), token.wrapping_sub(1), token ^ 1 << 30];
    for other in others.into_iter().filter(|other| *other != token || token == NO_TOKEN) {
        refused(ACKNOWLEDGE, other.into(), 0)?;
    }
    // A token has 32 bits.
    refused(ACKNOWLEDGE, 1 << 32 | u64::from(token), 0)
}

fn refused(function: u32, first: u64, second: u64) -> Result<(), Failure> {
    match psci::call_with(function, [first, second, 0]) {
        INVALID_PARAMETER => Ok(()),
        answer => Err(Failure::NotRefused { function, first, second, answer }),
    }
}
