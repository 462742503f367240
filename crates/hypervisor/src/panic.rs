// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A panic or an exception at EL2: one report, then exit. An exception of an instruction in the [exception
//! table](crate::exception_table) is not fatal.
//!
//! The report goes to the serial port and, line by line, to the control channel.
//!
//! Invariant: there is one report, and it ends. The first CPU that gets here writes it. Other CPUs that get here stop;
//! a CPU that runs a guest continues until the exit. If the reporting CPU gets here again, the report itself failed,
//! and the CPU exits at once. The report waits for no lock without a bound ([`channel`] says how it gets the control
//! channel), and allocates no memory.

use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};

use spin::Once;

use crate::console::Console;
use crate::{channel, control, cpus, el2_mmu, exception_table, power, read_sysreg, shutdown, write_sysreg};

/// Sets the function that writes the last exits of the guest into a report. Only the first call has an effect.
pub fn set_last_exits(write: fn(&mut dyn Write)) {
    LAST_EXITS.call_once(|| write);
}

/// The registers of the code at EL2 that an exception interrupted.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    /// x0 to x30.
    pub x: [u64; 31],
    /// SP_EL2.
    pub sp: u64,
}

/// The vector of a fatal exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[allow(missing_docs, reason = "each variant is the vector of that name")]
pub enum Fatal {
    Sync = 0,
    Irq = 1,
    Fiq = 2,
    SError = 3,
    LowerAArch32 = 4,
}

static LAST_EXITS: Once<fn(&mut dyn Write)> = Once::new();

/// An exception at EL2, from the vectors, on the emergency stack. Returns only if the exception table has a landing for
/// it; ELR_EL2 then points to the landing.
pub(crate) extern "C" fn exception(fatal: Fatal, frame: &Frame) {
    if matches!(fatal, Fatal::Sync | Fatal::SError)
        && let Some(landing) = exception_table::landing(read_sysreg!(ESR_EL2), read_sysreg!(ELR_EL2))
    {
        // SAFETY: EL2 continues at the landing of the interrupted code. The vector restores all other registers.
        return unsafe { write_sysreg!(ELR_EL2, landing) };
    }
    report(|out| {
        let cause = match fatal {
            Fatal::Sync if cpus::is_guard(read_sysreg!(FAR_EL2)) => "stack overflow",
            Fatal::Sync => "exception",
            Fatal::Irq => "unexpected IRQ",
            Fatal::Fiq => "unexpected FIQ",
            Fatal::SError => "SError",
            Fatal::LowerAArch32 => "exception from AArch32",
        };
        writeln!(out, "{cause} at EL2 on CPU {}", cpus::current())?;
        syndrome(out)?;
        for (row, registers) in frame.x.chunks(4).enumerate() {
            write!(out, "  x{:<2}", row * 4)?;
            for value in registers {
                write!(out, " {value:016x}")?;
            }
            writeln!(out)?;
        }
        writeln!(out, "  sp  {:016x}", frame.sp)?;
        write!(out, "backtrace: {}", CodeAddress(read_sysreg!(ELR_EL2)))?;
        backtrace(out, frame.x[29])
    })
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    let frame_pointer: u64;
    // SAFETY: reads a register. Code is built with frame pointers, so it points to this function's frame record.
    unsafe { core::arch::asm!("mov {}, x29", out(reg) frame_pointer, options(nomem, nostack, preserves_flags)) };
    report(|out| {
        writeln!(out, "panic on CPU {}: {}", cpus::current(), info.message())?;
        if let Some(location) = info.location() {
            writeln!(out, "  at {location}")?;
        }
        writeln!(out, "last exception to EL2:")?;
        syndrome(out)?;
        write!(out, "backtrace:")?;
        backtrace(out, frame_pointer)
    })
}

fn report(write: impl FnOnce(&mut Report) -> fmt::Result) -> ! {
    const NO_CPU: usize = usize::MAX;
    static REPORTER: AtomicUsize = AtomicUsize::new(NO_CPU);

    let this = cpus::current();
    match REPORTER.compare_exchange(NO_CPU, this, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {}
        Err(reporter) if reporter == this => shutdown::exit(twofold_abi::exit::PANIC),
        Err(_) => {
            channel::abandon();
            power::park()
        }
    }
    channel::take_over();
    let mut out = Report::new();
    let _ = out.write_str("\n");
    let _ = write(&mut out);
    if let Some(last_exits) = LAST_EXITS.get() {
        last_exits(&mut out);
    }
    out.flush();
    control::end("panic");
    shutdown::exit(twofold_abi::exit::PANIC)
}

fn syndrome(out: &mut impl Write) -> fmt::Result {
    let esr = read_sysreg!(ESR_EL2);
    let elr = read_sysreg!(ELR_EL2);
    writeln!(out, "  ESR_EL2   {esr:#018x}: {}", exception_class(esr))?;
    writeln!(out, "  ELR_EL2   {elr:#018x} = {}", CodeAddress(elr))?;
    writeln!(out, "  FAR_EL2   {:#018x}", read_sysreg!(FAR_EL2))?;
    writeln!(out, "  HPFAR_EL2 {:#018x}", read_sysreg!(HPFAR_EL2))?;
    writeln!(out, "  SPSR_EL2  {:#018x}", read_sysreg!(SPSR_EL2))
}

/// ESR_EL2.EC in words.
fn exception_class(esr: u64) -> &'static str {
    match (esr >> 26) & 0x3f {
        0x00 => "unknown reason (undefined instruction?)",
        0x01 => "WFI or WFE",
        0x07 => "access to SVE, SIMD or FP",
        0x0e => "illegal execution state",
        0x12 => "HVC from AArch32",
        0x15 => "SVC",
        0x16 => "HVC",
        0x17 => "SMC",
        0x18 => "access to a system register",
        0x19 => "access to SVE",
        0x1d => "access to SME",
        0x20 => "instruction abort from the guest",
        0x21 => "instruction abort at EL2",
        0x22 => "misaligned PC",
        0x24 => "data abort from the guest",
        0x25 if esr & (1 << 6) != 0 => "data abort at EL2, a write",
        0x25 => "data abort at EL2, a read",
        0x26 => "misaligned SP",
        0x2f => "SError",
        0x30..=0x35 => "debug exception",
        0x3c => "BRK",
        _ => "another exception class",
    }
}

/// Writes the return addresses on the chain of frame records from `frame` on.
fn backtrace(out: &mut impl Write, mut frame: u64) -> fmt::Result {
    let stacks = cpus::stacks();
    for _ in 0..16 {
        let address = frame as usize;
        let on_stack = stacks.iter().any(|stack| stack.contains(&address) && stack.contains(&(address + 15)));
        if !on_stack || address & 15 != 0 {
            break;
        }
        // SAFETY: the record lies within one of this CPU's stacks, which are mapped, and is aligned.
        let [next, return_address] = unsafe { *(address as *const [u64; 2]) };
        if return_address == 0 {
            break;
        }
        write!(out, " {}", CodeAddress(return_address))?;
        frame = next;
    }
    writeln!(out)
}

/// An address. Inside the image it is printed relative to the image, which is its address in the ELF file.
struct CodeAddress(u64);

impl fmt::Display for CodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let image = el2_mmu::image();
        if image.contains(&self.0) {
            write!(f, "image+{:#x}", self.0 - image.start)
        } else {
            write!(f, "{:#x}", self.0)
        }
    }
}

/// Writes to the serial port, and collects lines for the control channel.
struct Report {
    line: arrayvec::ArrayString<240>,
}

impl Report {
    fn new() -> Self {
        Self { line: arrayvec::ArrayString::new() }
    }

    fn flush(&mut self) {
        if !self.line.is_empty() {
            control::log(format_args!("{}", self.line));
            self.line.clear();
        }
    }
}

impl Write for Report {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        Console.write_str(text)?;
        for character in text.chars() {
            if character == '\n' {
                self.flush();
            } else if self.line.try_push(character).is_err() {
                self.flush();
                self.line.push(character);
            }
        }
        Ok(())
    }
}
