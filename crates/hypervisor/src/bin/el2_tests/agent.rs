// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that makes one access on command.
//!
//! Its program is one page, position-independent: 2 KiB of vectors, then the commands. EL2 puts the operands in
//! registers and the PC at a command. The command makes its one access and calls EL2. Every vector also calls EL2, with
//! its number, so EL2 sees every exception.
//!
//! Invariant: between two commands the guest has no state except its system registers.

use core::arch::global_asm;

use spin::Once;
use twofold_hypervisor::stats::Stats;
use twofold_hypervisor::world::{self, Context, Trap};
use twofold_hypervisor::{cpus, panic, read_sysreg, write_sysreg};

use crate::exit::{Exception, Exit};

/// A command to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Loads 64 bits.
    Load,
    /// Stores 64 bits.
    Store,
    /// Calls a function.
    Fetch,
    /// Loads 64 bits at EL0.
    LoadAtEl0,
    /// Calls a function at EL0.
    FetchAtEl0,
    /// Cleans and invalidates a line.
    Clean,
    /// Nothing.
    Rest,
}

/// A vCPU that runs the program.
pub struct Agent {
    base: u64,
    context: Context,
}

/// The program, to be copied into a page of the guest.
pub fn program() -> &'static [u8] {
    // SAFETY: the symbols are the two ends of the program below, which is a part of the image's constants.
    unsafe { core::slice::from_raw_parts(&raw const agent_start, offset(&raw const agent_end) as usize) }
}

/// A function that returns `value`, to be copied into a page of the guest and called.
pub fn function(value: u16) -> u64 {
    const MOVZ_X0: u64 = 0xd280_0000;
    const RET: u64 = 0xd65f_03c0;
    RET << 32 | MOVZ_X0 | u64::from(value) << 5
}

impl Agent {
    /// An agent whose program is at this address of the guest: a virtual address if the guest's MMU is on.
    pub fn new(base: u64) -> Self {
        Self { base, context: Context::new(base, 0) }
    }

    /// Sets the address of the program from now on.
    pub fn move_to(&mut self, base: u64) {
        self.base = base;
    }

    pub fn load(&mut self, address: u64) -> Result<u64, Exit> {
        self.run(Command::Load, address, 0)
    }

    pub fn store(&mut self, address: u64, value: u64) -> Result<(), Exit> {
        self.run(Command::Store, address, value).map(drop)
    }

    /// Calls the [`function`] at `address` and returns its result.
    pub fn fetch(&mut self, address: u64) -> Result<u64, Exit> {
        self.run(Command::Fetch, address, 0)
    }

    /// Executes the command once.
    pub fn run(&mut self, command: Command, address: u64, value: u64) -> Result<u64, Exit> {
        const EL0_MASKED: u64 = 0x3c0;
        let (code, pstate) = match command {
            Command::Load => (&raw const agent_load, Context::EL1H_MASKED),
            Command::Store => (&raw const agent_store, Context::EL1H_MASKED),
            Command::Fetch => (&raw const agent_fetch, Context::EL1H_MASKED),
            Command::LoadAtEl0 => (&raw const agent_load_at_el0, EL0_MASKED),
            Command::FetchAtEl0 => (&raw const agent_fetch_at_el0, EL0_MASKED),
            Command::Clean => (&raw const agent_clean, Context::EL1H_MASKED),
            Command::Rest => (&raw const agent_rest, Context::EL1H_MASKED),
        };
        self.context = Context::new(self.base + offset(code), address);
        self.context.x[1] = value;
        self.context.pstate = pstate;
        self.resume()
    }

    /// Continues where the last command was stopped, or at the PC of `context`.
    pub fn resume(&mut self) -> Result<u64, Exit> {
        const HVC: u64 = 0x16;
        const SVC: u64 = 0x15;
        const FROM_EL0: u64 = 0x400;
        // SAFETY: VBAR_EL1 belongs to the guest, which is not running.
        unsafe { write_sysreg!(VBAR_EL1, self.base) };
        // SAFETY: `Machine::take_over` or `other_cpu` set this CPU up and loaded a guest's tables, which map only the
        // test's memory; the context is at EL1 or EL0.
        let trap = unsafe { world::enter(&mut self.context) };
        let esr = read_sysreg!(ESR_EL2);
        exits()[cpus::current()].exit(esr, self.context.pc);
        if trap != Trap::Sync || esr >> 26 & 0x3f != HVC {
            return Err(Exit::read(esr, self.context.pc));
        }
        match (esr & 0xffff).checked_sub(VECTOR_0) {
            None => Ok(self.context.x[0]),
            Some(vector) => match Exception::read(vector * 0x80) {
                // A command at EL0 ends by SVC.
                end if end.vector == FROM_EL0 && end.class() == SVC => Ok(self.context.x[0]),
                exception => Err(Exit::Exception(exception)),
            },
        }
    }

    /// The registers, to raise an exception in the guest.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }
}

/// The last exits of each CPU's agent, for the report of a panic.
fn exits() -> &'static [Stats; 2] {
    static EXITS: Once<[Stats; 2]> = Once::new();
    EXITS.call_once(|| {
        panic::set_last_exits(|out| {
            for (cpu, stats) in EXITS.get().into_iter().flatten().enumerate() {
                stats.write_last(cpu, out);
            }
        });
        Default::default()
    })
}

/// The call of the first vector; the program's own calls have lower numbers.
const VECTOR_0: u64 = 0x100;

fn offset(symbol: *const u8) -> u64 {
    symbol as u64 - &raw const agent_start as u64
}

unsafe extern "C" {
    static agent_start: u8;
    static agent_load: u8;
    static agent_store: u8;
    static agent_fetch: u8;
    static agent_load_at_el0: u8;
    static agent_fetch_at_el0: u8;
    static agent_clean: u8;
    static agent_rest: u8;
    static agent_end: u8;
}

global_asm!(
    ".pushsection .rodata.agent, \"a\"",
    ".balign 4096",
    "agent_start:",
    ".irp vector, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "    .balign 128",
    "    hvc #({vector_0} + \\vector)",
    ".endr",
    "    .balign 2048",
    "agent_load:",
    "    ldr x0, [x0]",
    "    hvc #0",
    "agent_store:",
    "    str x1, [x0]",
    "    hvc #0",
    "agent_fetch:",
    "    blr x0",
    "    hvc #0",
    "agent_load_at_el0:",
    "    ldr x0, [x0]",
    "    svc #0",
    "agent_fetch_at_el0:",
    "    blr x0",
    "    svc #0",
    "agent_clean:",
    "    dc civac, x0",
    "    hvc #0",
    "agent_rest:",
    "    hvc #0",
    "agent_end:",
    ".global agent_start, agent_load, agent_store, agent_fetch, agent_load_at_el0, agent_fetch_at_el0",
    ".global agent_clean, agent_rest, agent_end",
    ".popsection",
    vector_0 = const VECTOR_0,
);
