// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a guest's devices as sections, and back ([`crate::vm::saved`]).
//!
//! A device's line is not part of its state. It is set again from what is restored, so the interrupt controller knows its
//! level whichever of the two is restored first.

use alloc::vec::Vec;

use twofold_abi::virt;
use twofold_devices::{Pl011, Pl031};
use twofold_vmm::saved::Section;

use super::Devices;
use crate::vm::saved::{Unrestored, Unsaved};

impl Devices {
    /// Appends the sections of the devices. No vCPU is loaded.
    pub(crate) fn save(&self, to: &mut Vec<u8>) -> Result<(), Unsaved> {
        let mut put = |name, bytes: &[u8]| Section { name, instance: 0, bytes }.write(to);
        put("gic", &self.gic.save()?);
        put("uart", &self.uart.lock().model.state());
        put("rtc", &self.rtc.lock().state());
        self.virtio.save(to)?;
        Ok(())
    }

    /// Takes the content of the section of this name. No vCPU is loaded.
    pub(crate) fn restore(&self, name: &str, bytes: &[u8]) -> Result<(), Unrestored> {
        match name {
            "gic" => self.gic.restore(bytes)?,
            "uart" => {
                let model = Pl011::from_state(bytes)?;
                let mut uart = self.uart.lock();
                let level = model.interrupt();
                uart.model = model;
                self.set_uart_line(None, &mut uart, level);
            }
            "rtc" => {
                let model = Pl031::from_state(bytes)?;
                let mut rtc = self.rtc.lock();
                self.gic.set_shared(None, virt::RTC_INTERRUPT, model.interrupt());
                *rtc = model;
            }
            _ => return Err(Unrestored::Unknown),
        }
        Ok(())
    }
}
