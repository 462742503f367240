// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a hostile guest tries: one instruction, with values for x0 to x3, chosen at random.

use core::fmt;
use core::ops::Range;

use twofold_abi::virt::{
    GICD_BASE, GICD_SIZE, GICR_BASE, GICR_SIZE, RAM_BASE, RTC_BASE, RTC_SIZE, STOLEN_TIME_BASE, UART_BASE, UART_SIZE,
};

use crate::random::Random;
use crate::secret::is_foreign;
use crate::{mmu, psci};

/// One instruction, and x0 to x3.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    pub instruction: u32,
    pub arguments: [u64; 4],
}

impl fmt::Display for Act {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "instruction {:#x}, x0 to x3 {:x?}", self.instruction, self.arguments)
    }
}

/// The guest's own memory.
#[derive(Clone, Debug)]
pub struct Own {
    /// All of it.
    pub ram: Range<u64>,
    /// The part that nothing uses.
    pub free: Range<u64>,
    /// The number of its vCPUs.
    pub vcpus: u64,
}

impl Act {
    /// Any.
    pub fn choose(random: &mut Random, own: &Own) -> Self {
        let act = match random.next() % 16 {
            0..=3 => load(random, own),
            4..=5 => store(random, own),
            6 => maintain(random, own),
            7..=9 => device(random, own),
            10..=11 => call(random),
            12 => send(random),
            13 => route(random),
            _ => read(random),
        };
        // What this program itself makes must not be taken for another owner's.
        Self { arguments: act.arguments.map(|word| if is_foreign(word) { 0 } else { word }), ..act }
    }
}

/// Of 1, 2, 4, 8 and 16 bytes, in pairs, exclusive, ordered, and without a privilege.
const LOADS: [u32; 10] = [
    0x3940_0020, // ldrb w0, [x1]
    0x7940_0020, // ldrh w0, [x1]
    0xb940_0020, // ldr w0, [x1]
    0xf940_0020, // ldr x0, [x1]
    0xa940_0820, // ldp x0, x2, [x1]
    0x3dc0_0020, // ldr q0, [x1]
    0xc85f_7c20, // ldxr x0, [x1]
    0xc8df_fc20, // ldar x0, [x1]
    0xf840_0820, // ldtr x0, [x1]
    0xf840_8420, // ldr x0, [x1], #8
];
const STORES: [u32; 9] = [
    0x3900_0020, // strb w0, [x1]
    0x7900_0020, // strh w0, [x1]
    0xb900_0020, // str w0, [x1]
    0xf900_0020, // str x0, [x1]
    0xa900_0820, // stp x0, x2, [x1]
    0x3d80_0020, // str q0, [x1]
    0xc89f_fc20, // stlr x0, [x1]
    0xf800_0820, // sttr x0, [x1]
    0xf800_8420, // str x0, [x1], #8
];
/// By address. DC ZVA is a store.
const MAINTENANCE: [u32; 9] = [
    0xd50b_7421, // dc zva, x1
    0xd50b_7e21, // dc civac, x1
    0xd508_7621, // dc ivac, x1
    0xd50b_7a21, // dc cvac, x1
    0xd50b_7521, // ic ivau, x1
    0xd508_7801, // at s1e1r, x1
    0xd508_7821, // at s1e1w, x1
    0xd508_8721, // tlbi vae1, x1
    0xd50c_8021, // tlbi ipas2e1is, x1: EL2's
];

fn load(random: &mut Random, own: &Own) -> Act {
    let address = match random.next() % 4 {
        0 => own.free.start + random.next() % (own.free.end - own.free.start - 16),
        _ => outside(random, own),
    };
    Act { instruction: random.one_of(&LOADS), arguments: [0, address, 0, 0] }
}

fn store(random: &mut Random, own: &Own) -> Act {
    let address = outside(random, own);
    Act { instruction: random.one_of(&STORES), arguments: [value(random), address, value(random), 0] }
}

fn maintain(random: &mut Random, own: &Own) -> Act {
    let address = outside(random, own);
    Act { instruction: random.one_of(&MAINTENANCE), arguments: [0, address, 0, 0] }
}

/// An address that is not the guest's RAM: anywhere, near the ends of its RAM, where a machine has RAM and an image, and
/// beyond what stage 1 maps. Devices may be there.
fn outside(random: &mut Random, own: &Own) -> u64 {
    let address = match random.next() % 8 {
        0 => random.next(),
        1 => random.next() % (1 << 48),
        2 => own.ram.end + random.next() % 0x1_0000,
        3 => own.ram.start.wrapping_sub(1 + random.next() % 0x1_0000),
        // A machine has its own RAM at the same place: EL2's image, its heap, and another guest's frames.
        4 => own.ram.end + random.next() % (2 << 30),
        5 => random.next() % RAM_BASE,
        6 => STOLEN_TIME_BASE + random.next() % 0x2_0000,
        _ => random.next() % mmu::ADDRESS_END,
    };
    // The console's registers only by `device`, and no part of an access is in the guest's RAM.
    let is_own = |address: u64| (own.ram.start - 64..own.ram.end).contains(&address);
    let is_console = (UART_BASE..UART_BASE + UART_SIZE).contains(&address);
    if is_own(address) || is_console { own.ram.end + address % 0x1000 } else { address }
}

/// A register of a device, of the guest's own and of redistributors that it does not have.
fn device(random: &mut Random, own: &Own) -> Act {
    let redistributors = (own.vcpus + 2) * GICR_SIZE;
    let (base, size) = random.one_of(&[
        (GICD_BASE, GICD_SIZE),
        (GICD_BASE, GICD_SIZE),
        (GICR_BASE, redistributors),
        (GICR_BASE, redistributors),
        (UART_BASE, UART_SIZE),
        (RTC_BASE, RTC_SIZE),
    ]);
    // Most registers are in the first KiB of a frame of 64 KiB; IROUTER and ID registers are not.
    let frame = (random.next() % size) & !0xffff;
    let offset = match random.next() % 4 {
        0 => random.next() % size,
        1 => frame + 0xffd0 + random.next() % 0x30,
        _ => frame + random.next() % 0x1000,
    };
    let offset = if random.next().is_multiple_of(4) { offset } else { offset & !7 };
    let address = base + offset % size;
    // Its data register would fill the console.
    let is_silent = base == UART_BASE;
    match is_silent || random.next().is_multiple_of(2) {
        true => Act { instruction: random.one_of(&LOADS), arguments: [0, address, 0, 0] },
        false => Act { instruction: random.one_of(&STORES), arguments: [value(random), address, value(random), 0] },
    }
}

/// A hypercall of any range. Those that end the guest or switch the caller off are left out. The other vCPUs are on, so
/// no CPU_ON starts one elsewhere.
fn call(random: &mut Random) -> Act {
    const ENDS: [u32; 7] = [
        psci::SYSTEM_OFF,
        psci::SYSTEM_RESET,
        psci::SYSTEM_RESET2_32,
        psci::SYSTEM_RESET2_64,
        psci::CPU_OFF,
        psci::CPU_SUSPEND_32,
        psci::CPU_SUSPEND_64,
    ];
    const HVC: u32 = 0xd400_0002;
    const SMC: u32 = 0xd400_0003;
    // The owner's number; a fast call, and of 64 bits, or neither.
    let range = random.next() % 64;
    let function = match random.next() % 4 {
        0 => random.next(),
        1 => random.one_of(&[psci::CPU_ON_32, psci::CPU_ON_64, 0x8400_0004, 0xc400_0004]).into(),
        2 => random.one_of(&[0x8400_0000, 0xc400_0000, 0x8600_0000, 0xc600_0000, 0xc500_0020]) + random.next() % 0x20,
        _ => (range << 24) + ((random.next() % 4) << 30) + random.next() % 0x1_0000,
    };
    let function = if ENDS.contains(&(function as u32)) { psci::VERSION.into() } else { function };
    let immediate = if random.next().is_multiple_of(2) { 0 } else { random.next() as u32 & 0xffff };
    let instruction = random.one_of(&[HVC, SMC]) | immediate << 5;
    Act { instruction, arguments: [function, affinity(random), value(random), value(random)] }
}

/// An interrupt to vCPUs of any affinity, by each of the three registers.
fn send(random: &mut Random) -> Act {
    const SGI1R: u32 = 0xd518_cba0;
    const ASGI1R: u32 = 0xd518_cbc0;
    const SGI0R: u32 = 0xd518_cbe0;
    let affinity = affinity(random);
    let fields = (affinity >> 32 & 0xff) << 48 | (affinity >> 16 & 0xff) << 32 | (affinity >> 8 & 0xff) << 16;
    let to_all_others = (random.next() & 1) << 40;
    let (intid, targets) = (random.next() % 16, random.next() % 0x1_0000);
    let value = intid << 24 | fields | to_all_others | targets;
    Act { instruction: random.one_of(&[SGI1R, ASGI1R, SGI0R]), arguments: [value, 0, 0, 0] }
}

/// A shared interrupt that is routed to any affinity, or made pending.
fn route(random: &mut Random) -> Act {
    const STORE: u32 = 0xf900_0020;
    const STORE_32: u32 = 0xb900_0020;
    let intid = 32 + random.next() % 988;
    match random.next() % 2 {
        0 => Act { instruction: STORE, arguments: [affinity(random), GICD_BASE + 0x6000 + 8 * intid, 0, 0] },
        // Enabled, pending, active.
        _ => {
            let register = random.one_of(&[0x100, 0x200, 0x300]) + intid / 32 * 4;
            Act { instruction: STORE_32, arguments: [1 << (intid % 32), GICD_BASE + register, 0, 0] }
        }
    }
}

/// A system register of any encoding, read.
fn read(random: &mut Random) -> Act {
    const MRS: u32 = 0xd520_0000;
    // Op0 of 2 or 3.
    Act { instruction: MRS | 1 << 20 | (random.next() as u32 & 0x7fff) << 5, arguments: [0; 4] }
}

/// Of this guest's vCPUs, of the first ones of any guest, or of none.
fn affinity(random: &mut Random) -> u64 {
    match random.next() % 4 {
        0 => random.next() % 8,
        1 => random.next() % 16 + 0x100 * (random.next() % 4),
        2 => random.next() & 0xff_00ff_ffff,
        _ => random.next(),
    }
}

fn value(random: &mut Random) -> u64 {
    match random.next() % 4 {
        0 => random.next(),
        1 => u64::MAX,
        2 => 1 << (random.next() % 64),
        _ => RAM_BASE + random.next() % (1 << 30),
    }
}
