// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the boot loader's jump to the image's `main`.
//!
//! An image has two entries. A boot loader jumps to its first byte (Linux, Documentation/arch/arm64/booting.rst), as
//! QEMU's `-kernel` and U-Boot's `booti` do. EFI starts it as an application; [`efi`] then leaves EFI, and enters it as a
//! boot loader would.
//!
//! `boot.s` starts with the MMU off: memory is Device memory (no unaligned access, no atomics) and stores bypass the
//! caches. So `boot.s` does as little as possible: it relocates the image, maps the gigabytes that contain image and
//! DTB, and turns the MMU on. Rust code runs only after that, but for `not_el2`. `start` then reads the DTB and replaces the first map by
//! the final one.
//!
//! Invariant: when `main` runs, the final map of [`el2_mmu`] is in use (no page is both writable and executable), and
//! the console, the control channel and PSCI are usable.

use core::arch::global_asm;

use dtoolkit::fdt::Fdt;
use spin::Once;
use twofold_vmm::guests::Missing;

use crate::board::{self, Board};
use crate::{channel, console, cpus, efi, el2_mmu, power, println, semihosting, start};

/// Makes `$main`, a `fn(&'static Board) -> !`, the main function of an image.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        // SAFETY: the name belongs to this macro, and the link fails if an image uses it twice. The type is the one
        // that `boot` declares.
        #[unsafe(no_mangle)]
        fn twofold_main(board: &'static $crate::board::Board) -> ! {
            let main: fn(&'static $crate::board::Board) -> ! = $main;
            main(board)
        }
    };
}

unsafe extern "Rust" {
    /// The image's main function, defined by [`entry!`](crate::entry).
    safe fn twofold_main(board: &'static Board) -> !;
}

static BOARD: Once<Board> = Once::new();

/// The first Rust code of an image that was entered at EL1 or EL3: reports it, and switches the machine off. The MMU is
/// off, so memory is Device memory, without atomics but loads and stores; `.bss` has any content.
///
/// # Safety
/// As [`start`].
unsafe extern "C" fn not_el2(dtb: *const u8) -> ! {
    // SAFETY: the caller's promise.
    if let Ok(fdt) = unsafe { Fdt::from_raw(dtb) } {
        if let Ok(uart) = board::uart(fdt) {
            // SAFETY: the DTB lists a PL011 there. With the MMU off, all memory is Device memory.
            unsafe { console::init(uart.start) };
            println!("twofold: {}", Missing::El2);
        }
        if board::has_boot_argument(fdt, twofold_abi::control::BOOT_ARGUMENT) {
            // SAFETY: with this word, the command line promises that semihosting is served.
            unsafe { semihosting::enable() };
            semihosting::write(c"twofold:error the image was not entered at EL2\n");
            semihosting::exit(twofold_abi::exit::CANNOT_START);
        }
        if let Ok(conduit) = board::conduit(fdt) {
            power::init(conduit);
            let _ = power::system_off();
        }
    }
    power::park()
}

/// The first Rust code, on the boot CPU: MMU on with the first map, `.bss` zero, vectors set.
///
/// # Safety
/// `dtb` must point to the device tree that the boot loader passed, and nothing may have changed it.
unsafe extern "C" fn start(dtb: *const u8) -> ! {
    // SAFETY: the caller's promise. The tree's memory is among the board's reserved ranges, so it is never handed out
    // and may be borrowed for ever.
    let fdt = unsafe { Fdt::from_raw(dtb) }.expect("x0 is the address of a valid device tree");
    if board::has_boot_argument(fdt, twofold_abi::control::BOOT_ARGUMENT) {
        // SAFETY: with this word, the command line promises that semihosting is served.
        unsafe { semihosting::enable() };
    }
    let board = Board::read(fdt, el2_mmu::image());
    let board = match efi::handover() {
        Some(efi) => board.and_then(|board| board.left_by(efi)),
        None => board,
    };
    // Even if the board as a whole cannot be parsed, the UART and PSCI may be usable for a report and an exit.
    let uart = board::uart(fdt).ok();
    let psci = board::conduit(fdt).ok();

    let mapped = el2_mmu::init(board.as_ref().ok(), uart.as_ref());
    if let Some(uart) = uart {
        // SAFETY: the DTB lists a PL011 there, and the new map has it as Device memory.
        unsafe { console::init(uart.start) };
    }
    if let Some(psci) = psci {
        power::init(psci);
    }
    mapped.expect("the image's own translation tables can be built");
    match board {
        Ok(board) => {
            // SAFETY: the DTB lists virtio transports there, and the new map has them as Device memory.
            unsafe { channel::start(&board.virtio) };
            twofold_main(BOARD.call_once(|| board))
        }
        Err(error) => start::cannot_start(&error),
    }
}

global_asm!(
    include_str!("boot.s"),
    areas = sym cpus::AREAS,
    boot_block = const el2_mmu::BOOT_BLOCK,
    boot_tables = const 5, // the root, and one for each of at most four gigabytes
    cpu_in_area = const cpus::CPU_IN_AREA,
    efi = sym efi::enter,
    enable_mmu = sym el2_mmu::enable,
    not_el2 = sym not_el2,
    sctlr = const el2_mmu::SCTLR,
    sctlr_boot = const el2_mmu::SCTLR_BOOT,
    stack_below_cpu = const cpus::STACK_BELOW_CPU,
    start = sym start,
    start_secondary = sym cpus::start_secondary,
    tables = sym el2_mmu::TABLES,
);
