// SPDX-License-Identifier: Apache-2.0 OR MIT
//! EL2's drivers of the machine's disks and network cards, over the models of `twofold-devices`: what is written is there,
//! errors and shrinking disks reach one request each, and a device that breaks every rule makes nothing panic.

mod bus;
mod card;
mod disk;
mod hostile;
