// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices of a guest: their places in its memory, their locks, and what their models need of the machine.
//!
//! The models are those of `twofold_devices`. Nothing here is on the path of a fault that maps memory: an access gets
//! here when no memslot is at its address.
//!
//! # Locking
//!
//! There is a lock for each device, held for one access or one interrupt, and never while a guest runs. A device's line
//! is set under that device's lock, so the controller sees the levels in the order in which the registers made them. The
//! order is: UART or clock, then the interrupt controller ([`gic::guest`](crate::gic::guest)), then the scheduler. No other
//! lock is taken under these, but that the virtio console moves bytes of the guest's memory under the UART's lock
//! ([`virtio`](crate::virtio) has the steps of those devices).
//!
//! # A console on the control channel
//!
//! If the UART's wire is the control channel, the UART's lock is around the [`Console`] too: the bytes between the two.
//!
//! * K1: a vCPU that accesses its UART takes the lock. What it sends goes into the console, and is [`Full`] if that is.
//! * K2: it notes that the console has a notice, if it has, and releases the lock. It takes the notice under the lock once
//!   more.
//! * K3: without a lock of its guest, it wakes the task of the control channel, or sets a deadline for that.
//! * S1: the task owns the channel ([`channel`](crate::channel)), and takes the lock of one UART at a time.
//! * S2: it changes the console: it copies what is to be sent, or writes input, or counts what the launcher took.
//! * S3: it lets the UART go on: bytes that waited for room leave it, and input enters it. The UART's interrupts follow.
//! * S4: it releases the lock. Only then it sends.
//!
//! The order is: channel, UART, interrupt controller, scheduler. K3 needs no lock, so a vCPU never waits for the channel. No
//! wake-up is lost: a UART that is full in K1 is full because its console is, and each change that makes room there is an
//! S2, which S3 follows under the same lock. And what a guest has written when the task looks in S2 is sent or has no
//! credit; what it writes later is a notice (K2), which is given once for each look.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;
use twofold_abi::virt;
use twofold_devices::pl011::{ByteSink, Full};
use twofold_devices::vgic::{ConfigError, Frame};
use twofold_devices::virtio::console::Terminal;
use twofold_devices::{InterruptLine, Pl011, Pl031, Width};
use twofold_vmm::console::{Console, Notice};
use twofold_vmm::name::Name;
use twofold_vmm::scheduler::EntityId;

use crate::board::Board;
use crate::clock::Clock;
use crate::gic::guest::{GuestGic, Waiting};
use crate::gic::sources::Sources;
use crate::granule::Memory;
use crate::mmio::Operation;
use crate::virtio::VirtioDevices;
use crate::{console, print, println, serial};

mod saved;

/// The devices of a guest.
pub struct Devices {
    /// The interrupt controller.
    pub gic: GuestGic,
    uart: Mutex<Uart>,
    /// Whether the control channel carries the console. It never changes.
    on_channel: bool,
    /// The console has a notice that was not taken (K2).
    has_notice: AtomicBool,
    rtc: Mutex<Pl031>,
    clock: Clock,
    vcpus: usize,
    /// The virtio devices.
    pub virtio: VirtioDevices,
}

/// A register of a device. Its tag is a word: bytes around a smaller one would be copied one by one, since the image makes no
/// access that is not aligned. That costs 50 instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Device {
    /// The interrupt controller's.
    Gic(Frame),
    /// The UART's, at this offset.
    Uart(u64),
    /// The clock's, at this offset.
    Rtc(u64),
}

struct Uart {
    model: Pl011,
    wire: Wire,
    /// The level of its line, as the controller knows it.
    level: bool,
    /// The machine's UART has bytes for which there is no room here, and its interrupt is off.
    is_behind: bool,
    /// The guest has sent by the virtio console last, and gets its input there.
    on_virtio: bool,
    /// The virtio console waits for room.
    virtio_waits: bool,
}

impl Devices {
    /// The devices of a guest with these vCPUs: their affinities, as in MPIDR_EL1, and what the scheduler calls them.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(
        board: &Board,
        vcpus: &[(u64, EntityId)],
        sources: &Sources,
        wire: Wire,
        virtio: VirtioDevices,
    ) -> Result<Self, ConfigError> {
        let clock = Clock::read(board);
        let on_channel = matches!(wire, Wire::Channel(_));
        Ok(Self {
            gic: GuestGic::new(vcpus, sources)?,
            uart: Mutex::new(Uart {
                model: Pl011::new(),
                wire,
                level: false,
                is_behind: false,
                on_virtio: false,
                virtio_waits: false,
            }),
            on_channel,
            has_notice: AtomicBool::new(false),
            rtc: Mutex::new(Pl031::new(clock.now())),
            clock,
            vcpus: vcpus.len(),
            virtio,
        })
    }

    /// The device at an address of the guest. Virtio devices, which need more than an access here, are found by their
    /// [`Place`](crate::virtio::Place).
    #[must_use]
    #[inline(always)]
    pub fn find(&self, ipa: u64) -> Option<Device> {
        let at = |base: u64, size: u64| Some(ipa.wrapping_sub(base)).filter(|offset| *offset < size);
        // The interrupt controller is accessed most.
        if let Some(frame) = Frame::locate(ipa, self.vcpus) {
            return Some(Device::Gic(frame));
        }
        match at(virt::UART_BASE, virt::UART_SIZE) {
            Some(offset) => Some(Device::Uart(offset)),
            None => at(virt::RTC_BASE, virt::RTC_SIZE).map(Device::Rtc),
        }
    }

    /// An access of vCPU `vcpu`, which runs on this CPU. Returns the value of a load, or `None` if the guest has to
    /// repeat it.
    #[inline]
    pub fn access(
        &self,
        vcpu: usize,
        device: Device,
        width: Width,
        operation: Operation,
        waiting: &mut Option<Waiting>,
    ) -> Option<u64> {
        match device {
            Device::Uart(offset) if self.on_channel => Some(self.uart_on_channel(Some(vcpu), offset, width, operation)),
            Device::Uart(offset) => Some(self.uart(Some(vcpu), offset, width, operation)),
            Device::Gic(frame) => self.gic.access(vcpu, frame, width, operation, waiting),
            Device::Rtc(offset) => Some(self.rtc(Some(vcpu), offset, width, operation)),
        }
    }

    /// S2 and S3: calls `act` with the console, and lets the UART go on. `None`: the control channel does not carry it. `here`
    /// as below.
    pub fn console<T>(&self, here: Option<usize>, act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        let mut uart = self.uart.lock();
        let uart = &mut *uart;
        let Wire::Channel(console) = &mut uart.wire else { return None };
        let done = act(console);
        let mut line = uart.level;
        if uart.model.waiting() > 0 && console.has_room() {
            uart.model.transmit(&mut ToConsole(console), &mut line);
        }
        self.deliver(uart, &mut line);
        self.set_uart_line(here, uart, line);
        self.wake_virtio(uart);
        Some(done)
    }

    /// Calls `act` with the guest's console, as the far end of its virtio console. The caller then takes the
    /// [notice](Self::notice).
    pub(crate) fn terminal<T>(&self, act: impl FnOnce(&mut VirtioTerminal<'_>) -> T) -> T {
        let mut uart = self.uart.lock();
        let done = act(&mut VirtioTerminal(&mut uart));
        if let Wire::Channel(console) = &uart.wire
            && console.has_notice()
        {
            self.has_notice.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Something has changed for the virtio console, perhaps.
    fn wake_virtio(&self, uart: &mut Uart) {
        let has_input = uart.on_virtio && matches!(&uart.wire, Wire::Channel(console) if console.has_input());
        if core::mem::take(&mut uart.virtio_waits) || has_input {
            self.virtio.wake_console();
        }
    }

    /// K2: takes the console's notice.
    #[inline(always)]
    pub fn notice(&self) -> Notice {
        // Another vCPU's access may have made it: then either may take it.
        if !self.has_notice.load(Ordering::Relaxed) {
            return Notice::None;
        }
        self.take_notice()
    }

    #[cold]
    fn take_notice(&self) -> Notice {
        let mut uart = self.uart.lock();
        self.has_notice.store(false, Ordering::Relaxed);
        if let Wire::Channel(console) = &mut uart.wire { console.notice() } else { Notice::None }
    }

    /// The machine's UART has received something, or has room again. `here` is the vCPU of this guest that is loaded on
    /// this CPU, if one is.
    pub fn serial_interrupt(&self, here: Option<usize>) {
        let mut uart = self.uart.lock();
        let uart = &mut *uart;
        if let Wire::Channel(_) = uart.wire {
            return;
        }
        let mut line = uart.level;
        if uart.model.waiting() > 0 {
            serial::set_transmit_interrupt(false);
            uart.model.transmit(&mut uart.wire, &mut line);
        }
        if uart.virtio_waits {
            serial::set_transmit_interrupt(false);
            self.wake_virtio(uart);
        }
        while uart.model.room() > 0
            && let Some(byte) = serial::receive()
        {
            uart.model.receive(&[byte], &mut line);
        }
        uart.is_behind = uart.model.room() == 0;
        if uart.is_behind {
            serial::set_receive_interrupt(false);
        }
        self.set_uart_line(here, uart, line);
    }

    /// All devices are as after a reset. No vCPU is loaded. `memory` is the guest's.
    pub(crate) fn reset(&self, memory: &Memory) {
        {
            let mut uart = self.uart.lock();
            uart.model = Pl011::new();
            (uart.on_virtio, uart.virtio_waits) = (false, false);
            self.set_uart_line(None, &mut uart, false);
        }
        let mut rtc = self.rtc.lock();
        *rtc = Pl031::new(self.clock.now());
        self.gic.set_shared(None, virt::RTC_INTERRUPT, false);
        self.virtio.reset(&self.gic, memory);
        // It fails only if a vCPU is loaded.
        let _ = self.gic.reset();
    }

    /// The machine's time at which the clock has its alarm, if it has one.
    #[must_use]
    pub fn alarm(&self) -> Option<u64> {
        self.rtc.lock().due().map(|seconds| self.clock.counter_at(seconds))
    }

    /// The time of the clock's alarm has come, perhaps. `here` as above.
    pub fn alarm_due(&self, here: Option<usize>) {
        let mut rtc = self.rtc.lock();
        rtc.advance(self.clock.now(), &mut Line { gic: &self.gic, here, intid: virt::RTC_INTERRUPT });
    }

    // Out of line, as the clock: so an access to the interrupt controller saves fewer registers.
    #[inline(never)]
    fn uart(&self, here: Option<usize>, offset: u64, width: Width, operation: Operation) -> u64 {
        let mut uart = self.uart.lock();
        let uart = &mut *uart;
        let mut line = uart.level;
        let value = match operation {
            Operation::Read => uart.model.read(offset, width, &mut line),
            Operation::Write(value) => {
                uart.model.write(offset, width, value, &mut uart.wire, &mut line);
                0
            }
        };
        if uart.is_behind && uart.model.room() > 0 {
            uart.is_behind = false;
            serial::set_receive_interrupt(true);
        }
        self.set_uart_line(here, uart, line);
        value
    }

    /// K1 and K2.
    #[inline(never)]
    fn uart_on_channel(&self, here: Option<usize>, offset: u64, width: Width, operation: Operation) -> u64 {
        if let Operation::Write(value) = operation {
            let mut uart = self.uart.lock();
            let uart = &mut *uart;
            if let Wire::Channel(console) = &mut uart.wire
                && uart.model.send_at_once(offset, width, value, &mut ToConsole(console))
            {
                uart.on_virtio = false;
                if console.has_notice() {
                    self.has_notice.store(true, Ordering::Relaxed);
                }
                return 0;
            }
        }
        self.other_on_channel(here, offset, width, operation)
    }

    /// As [`uart_on_channel`](Self::uart_on_channel), for anything but a byte that goes out at once.
    #[inline(never)]
    fn other_on_channel(&self, here: Option<usize>, offset: u64, width: Width, operation: Operation) -> u64 {
        let mut uart = self.uart.lock();
        let uart = &mut *uart;
        let Wire::Channel(console) = &mut uart.wire else { return 0 };
        let mut line = uart.level;
        let value = match operation {
            Operation::Read => uart.model.read(offset, width, &mut line),
            Operation::Write(value) => {
                uart.model.write(offset, width, value, &mut ToConsole(console), &mut line);
                0
            }
        };
        if console.has_notice() || console.has_input() {
            self.deliver(uart, &mut line);
        }
        self.set_uart_line(here, uart, line);
        value
    }

    /// Input of the console enters the UART, as far as there is room.
    #[inline(never)]
    fn deliver(&self, uart: &mut Uart, line: &mut bool) {
        let Wire::Channel(console) = &mut uart.wire else { return };
        while !uart.on_virtio && uart.model.room() > 0 && !console.input().is_empty() {
            let taken = uart.model.receive(console.input(), line);
            console.read(taken);
        }
        if console.has_notice() {
            self.has_notice.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn set_uart_line(&self, here: Option<usize>, uart: &mut Uart, level: bool) {
        if uart.level != level {
            uart.level = level;
            self.gic.set_shared(here, virt::UART_INTERRUPT, level);
        }
    }

    #[inline(never)]
    fn rtc(&self, here: Option<usize>, offset: u64, width: Width, operation: Operation) -> u64 {
        let mut rtc = self.rtc.lock();
        let now = self.clock.now();
        let mut line = Line { gic: &self.gic, here, intid: virt::RTC_INTERRUPT };
        match operation {
            Operation::Read => rtc.read(offset, width, now, &mut line),
            Operation::Write(value) => {
                rtc.write(offset, width, value, now, &mut line);
                0
            }
        }
    }
}

/// The far end of a guest's UART: the machine's, or the control channel.
pub enum Wire {
    /// The guest has it alone. If it is full, its interrupt says when it has room again.
    Whole,
    /// Several guests share it, line by line. Each line begins with the guest's name.
    Lines {
        /// The guest.
        name: Name,
        /// The line so far, of [`LINE_MAX`] bytes at most.
        line: Vec<u8>,
    },
    /// The control channel carries it.
    Channel(Box<Console>),
}

/// A longer line is broken.
const LINE_MAX: usize = 240;

impl Wire {
    /// The end of a guest that shares the machine's UART with others.
    #[must_use]
    pub fn shared(name: Name) -> Self {
        Self::Lines { name, line: Vec::with_capacity(LINE_MAX) }
    }

    #[inline(never)]
    fn put_elsewhere(&mut self, byte: u8) -> Result<(), Full> {
        match self {
            Self::Whole => Err(Full),
            Self::Lines { name, line } => {
                add_to_line(*name, line, byte);
                Ok(())
            }
            Self::Channel(console) => ToConsole(console).put(byte),
        }
    }

    /// The end of a guest whose console the launcher takes from the control channel.
    #[must_use]
    pub fn channel() -> Self {
        Self::Channel(Box::new(Console::new(CHANNEL_OUTPUT, CHANNEL_INPUT)))
    }
}

/// Bytes of output that wait for the launcher at most.
const CHANNEL_OUTPUT: usize = 16 << 10;
/// Bytes of input that wait for the guest at most.
const CHANNEL_INPUT: usize = 4 << 10;

/// The console of a guest as the far end of its UART.
struct ToConsole<'a>(&'a mut Console);

impl ByteSink for ToConsole<'_> {
    #[inline(always)]
    fn put(&mut self, byte: u8) -> Result<(), Full> {
        self.0.write(byte).map_err(|_| Full)
    }
}

/// The guest's console as the far end of its virtio console, under the UART's lock.
pub(crate) struct VirtioTerminal<'a>(&'a mut Uart);

impl Terminal for VirtioTerminal<'_> {
    fn output(&mut self, bytes: &[u8]) -> usize {
        self.0.on_virtio = true;
        let taken = bytes.iter().take_while(|byte| self.0.wire.put(**byte).is_ok()).count();
        self.0.virtio_waits = taken < bytes.len();
        taken
    }

    fn input(&self) -> &[u8] {
        match &self.0.wire {
            Wire::Channel(console) if self.0.on_virtio => console.input(),
            _ => &[],
        }
    }

    fn consume(&mut self, count: usize) {
        if let Wire::Channel(console) = &mut self.0.wire {
            console.read(count);
        }
    }
}

impl ByteSink for Wire {
    #[inline]
    fn put(&mut self, byte: u8) -> Result<(), Full> {
        if !matches!(self, Self::Whole) {
            return self.put_elsewhere(byte);
        }
        if serial::try_send(byte) {
            return Ok(());
        }
        serial::set_transmit_interrupt(true);
        Err(Full)
    }
}

#[inline(never)]
fn add_to_line(name: Name, line: &mut Vec<u8>, byte: u8) {
    /// The lines of two guests do not mix.
    static WHOLE: Mutex<()> = Mutex::new(());
    if byte != b'\n' {
        line.push(byte);
        if line.len() < LINE_MAX {
            return;
        }
    }
    let text = line.strip_suffix(b"\r").unwrap_or(line);
    let whole = WHOLE.lock();
    print!("[{name}] ");
    console::write(text);
    println!();
    drop(whole);
    line.clear();
}

/// A shared interrupt of the guest.
struct Line<'a> {
    gic: &'a GuestGic,
    /// The guest's vCPU that is loaded on this CPU.
    here: Option<usize>,
    intid: u32,
}

impl InterruptLine for Line<'_> {
    fn set(&mut self, asserted: bool) {
        self.gic.set_shared(self.here, self.intid, asserted);
    }
}
