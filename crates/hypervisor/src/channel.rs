// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The framed control channel (`docs/control.md`) over a port of the machine's virtio console.
//!
//! Any CPU sends, at any time: also a CPU that panics, while another CPU or its own interrupted code uses the device.
//!
//! # Which CPU uses the device
//!
//! `OWNER` names the CPU that uses the device, or says that none does.
//!
//! * **U1** A CPU masks its interrupts.
//! * **U2** It changes `OWNER` from `FREE` to its number (acquire). While another CPU is the owner, it retries.
//! * **U3** It uses the device, for a bounded time.
//! * **U4** It stores `FREE` (release), and restores its interrupts.
//! * **F1** A CPU that stops for ever changes `OWNER` from its number, if it is there, to `ABANDONED`.
//! * **R1** The CPU that reports a panic changes `OWNER` to its number with `REPORTS`: from `FREE`, from `ABANDONED`, or
//!   from its own number. While another CPU is the owner, it retries for a bounded time, then gives up.
//! * **R2** If the device was not `FREE`, it resets the device and makes a driver anew.
//! * **R3** It sends without U2 and U4. Each other CPU that comes to U2 gives up.
//!
//! By U2 and R1 one CPU at a time uses the device. By U1 no other code of the owner comes between U2 and U4 but a panic
//! and an exception that ends in a report: then R1 finds the own number, and the interrupted code never continues. A CPU
//! that is in F1 does not continue either. So in R2 no driver is in use, and what the old one left in memory does not
//! matter. The receiver finds the frame that was cut by the 0 that R2 begins with.
//!
//! # Invariants
//!
//! * A frame is sent whole or not at all, and frames of several CPUs do not mix.
//! * [`line()`] returns after the device has taken the frame, or has refused to for `PATIENCE` seconds. So the machine may
//!   be switched off next. After such a time, further frames are not waited for until the device takes one.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::hint;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use spin::{Mutex, Once};
use twofold_abi::channel::wire::{DELIMITER, PAYLOAD_MAX};
use twofold_abi::channel::{FrameWriter, ToLauncher};
use twofold_vmm::session::{Asked, Guests, Launcher, Session};

use crate::board::{self, Board};
use crate::serial_port::shared::{Registers, SharedMemory};
use crate::serial_port::wire::{CONSOLE, MAGIC, register};
use crate::serial_port::{MEMORY_SIZE, SendError, SerialPort};
use crate::{cpus, read_sysreg, timer};

/// Finds the port on one of these virtio transports and opens it. Without one there is no channel.
///
/// # Safety
/// Each transport's registers must be mapped, as Device memory, for ever.
pub(crate) unsafe fn start(transports: &[board::Transport]) {
    let is_console = |base: &usize| {
        let transport = Transport(*base);
        transport.read(register::MAGIC) == MAGIC && transport.read(register::DEVICE_ID) == CONSOLE
    };
    let mut consoles = transports.iter().map(|transport| transport.registers.start as usize).filter(is_console);
    let Some((base, channel)) = consoles.find_map(|base| Some((base, Channel::open(base)?))) else { return };
    BASE.call_once(|| base);
    *CHANNEL.lock() = Some(channel);
}

/// Sends a line of [`twofold_abi::control`], at most a frame's payload. False: there is no channel, nothing reads it, or a
/// panic is being reported on another CPU.
#[must_use]
pub fn line(line: &str) -> bool {
    BASE.get().is_some() && with_channel(|channel| channel.sender.send(None, &ToLauncher::Line(line))).unwrap_or(false)
}

/// Sends bytes of the trace, behind those before. No bytes of another CPU come between. False as of [`line()`]: then the trace
/// may have a part of them.
#[must_use]
pub fn trace(bytes: &[u8]) -> bool {
    let send = |channel: &mut Channel| {
        bytes.chunks(PAYLOAD_MAX).all(|part| channel.sender.send(None, &ToLauncher::Trace(part)))
    };
    BASE.get().is_some() && with_channel(send).unwrap_or(false)
}

/// What a [`poll`] found.
#[derive(Debug)]
pub enum Polled {
    /// The launcher has sent nothing that was not handled, or there is no channel.
    Nothing,
    /// There may be more.
    More,
    /// A command, which is to be answered by [`with_session`].
    Command(Asked),
}

/// Handles a part of what the launcher has sent, up to one command. The port's interrupt follows what comes after
/// [`Polled::Nothing`].
///
/// `guests` is asked with interrupts masked, while the channel is in use. So it must write no line, and wait for no CPU
/// that may write one. A call reads at most `READS` times `READ` bytes.
#[must_use]
pub fn poll(guests: &impl Guests) -> Polled {
    let polled = BASE.get().and_then(|_| with_channel(|channel| channel.poll(guests)));
    polled.flatten().unwrap_or(Polled::Nothing)
}

/// Calls `act` with the session and with what sends its messages. `act` must not do what [`poll`] forbids. `None`: there is
/// no channel, or a panic is being reported on another CPU.
pub fn with_session<T>(act: impl FnOnce(&mut Session, &mut Sender) -> T) -> Option<T> {
    BASE.get()?;
    with_channel(|channel| act(&mut channel.session, &mut channel.sender))
}

/// The interrupt of the port; `None`: there is no channel, or the device tree names no interrupt.
pub(crate) fn interrupt(board: &Board) -> Option<board::Shared> {
    let base = *BASE.get()? as u64;
    board.virtio.iter().find(|transport| transport.registers.start == base)?.interrupt
}

/// Whether the channel's device has its registers there.
pub(crate) fn is_at(base: u64) -> bool {
    BASE.get().is_some_and(|own| *own as u64 == base)
}

/// The port's interrupt was taken: it is asserted no longer. What it was for is found by the next [`poll`].
///
/// This is no use of the device as in U3: the owner does the same before it looks at the queues, in any order with this.
pub(crate) fn acknowledge_interrupt() {
    let Some(base) = BASE.get() else { return };
    let mut transport = Transport(*base);
    let reasons = transport.read(register::INTERRUPT_STATUS);
    if reasons != 0 {
        transport.write(register::INTERRUPT_ACKNOWLEDGE, reasons);
    }
}

/// The calling CPU reports a panic, and is the only one that sends from now on (R1, R2).
pub(crate) fn take_over() {
    let Some(&base) = BASE.get() else { return };
    let this = own();
    let deadline = Deadline::after(2 * PATIENCE);
    let is_intact = loop {
        match OWNER.compare_exchange(FREE, this | REPORTS, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break true,
            Err(owner) if owner == this || owner == ABANDONED => {
                // No other CPU changes these two.
                OWNER.store(this | REPORTS, Ordering::Relaxed);
                break false;
            }
            Err(_) if deadline.has_passed() => return,
            Err(_) => hint::spin_loop(),
        }
    };
    if !is_intact {
        *ANEW.lock() = Channel::open(base);
        IS_ANEW.store(true, Ordering::Relaxed);
    }
}

/// The calling CPU stops for ever, and may be the device's owner (F1).
pub(crate) fn abandon() {
    let _ = OWNER.compare_exchange(own(), ABANDONED, Ordering::Release, Ordering::Relaxed);
}

/// Takes the device and stops, as a CPU does that fails while it sends. For tests of the report.
#[doc(hidden)]
pub fn hold() {
    while OWNER.compare_exchange(FREE, own(), Ordering::Acquire, Ordering::Relaxed).is_err() {
        hint::spin_loop();
    }
    core::mem::forget(CHANNEL.lock());
}

/// Seconds until a device that takes nothing is given up.
pub(crate) const PATIENCE: u64 = 10;
/// Bytes that are read at once. What begins at a multiple of this in a buffer is read in words.
const READ: usize = 256;
/// Reads of one [`poll`] at most.
const READS: usize = 2;

/// No CPU uses the device.
const FREE: usize = 0;
/// The CPU that used the device has stopped for ever.
const ABANDONED: usize = usize::MAX;
/// Beside a CPU's number: it reports a panic, and owns the device until the end.
const REPORTS: usize = 1 << 32;

/// [`FREE`], [`ABANDONED`], or one more than the number of a CPU, perhaps with [`REPORTS`].
static OWNER: AtomicUsize = AtomicUsize::new(FREE);
/// The address of the transport; nothing if there is no channel.
static BASE: Once<usize> = Once::new();
/// The channel; for the owner, so its lock is never contended.
static CHANNEL: Mutex<Option<Channel>> = Mutex::new(None);
/// The channel of a CPU that had to make it anew (R2).
static ANEW: Mutex<Option<Channel>> = Mutex::new(None);
static IS_ANEW: AtomicBool = AtomicBool::new(false);

fn own() -> usize {
    cpus::current() + 1
}

/// Calls `act` as the device's owner (U1 to U4, or R3). `None`: there is no channel for this CPU.
fn with_channel<T>(act: impl FnOnce(&mut Channel) -> T) -> Option<T> {
    let this = own();
    masked(|| {
        loop {
            match OWNER.compare_exchange_weak(FREE, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let done = use_channel(&CHANNEL, act);
                    OWNER.store(FREE, Ordering::Release);
                    return done;
                }
                Err(owner) if owner == this | REPORTS => {
                    return use_channel(if IS_ANEW.load(Ordering::Relaxed) { &ANEW } else { &CHANNEL }, act);
                }
                // The own number: the code that was interrupted by this uses the device.
                Err(owner) if owner == this || owner & REPORTS != 0 => return None,
                Err(_) => hint::spin_loop(),
            }
        }
    })
}

/// The lock is taken only if the report itself failed while it sent.
fn use_channel<T>(channel: &Mutex<Option<Channel>>, act: impl FnOnce(&mut Channel) -> T) -> Option<T> {
    channel.try_lock()?.as_mut().map(act)
}

/// Calls `act` with IRQ and FIQ masked.
fn masked<T>(act: impl FnOnce() -> T) -> T {
    let before = read_sysreg!(DAIF);
    // SAFETY: an interrupt waits, and memory accesses are not moved across the change.
    unsafe { asm!("msr daifset, #3", options(nostack, preserves_flags)) };
    let done = act();
    // SAFETY: the mask is again as it was.
    unsafe { asm!("msr daif, {}", in(reg) before, options(nostack, preserves_flags)) };
    done
}

/// Both directions.
struct Channel {
    sender: Sender,
    session: Session,
    input: [u8; READ],
    /// The part of `input` that was not read: it is behind a command.
    unread: Range<usize>,
}

/// The port, and the frame that is being written.
#[derive(Debug)]
pub struct Sender {
    port: SerialPort<Transport, Memory>,
    writer: FrameWriter,
    /// The next frame is the first that this receiver gets.
    is_first: bool,
    /// The device has taken nothing for [`PATIENCE`] seconds.
    is_stuck: bool,
}

impl Channel {
    /// Makes the driver of the console at `base`, and waits until the port is open. It gives up if the device does not
    /// announce the port, or does not open it, for some time: [`Sender::send`] looks again.
    fn open(base: usize) -> Option<Self> {
        /// Each poll answers what the device said before: two are needed if it says all at once.
        const AT_ONCE: u32 = 4;
        /// Seconds. QEMU 10 announces and opens the port by its main loop, so milliseconds later.
        const ANNOUNCING: u64 = 2;
        const OPENING: u64 = PATIENCE;
        /// Rounds of a loop between two polls. A poll takes the lock that QEMU needs in order to open the port, and so does
        /// a look at the time.
        const PAUSE: u32 = 10_000;
        let mut port = SerialPort::new(Transport(base), Memory).ok()?;
        let [announced, opened] = [ANNOUNCING, OPENING].map(Deadline::after);
        let mut polls = 0;
        while !port.is_open() {
            let limit = if port.is_there() { &opened } else { &announced };
            if limit.has_passed() {
                break;
            }
            if polls >= AT_ONCE {
                (0..PAUSE).for_each(|_| hint::spin_loop());
            }
            port.poll().ok()?;
            polls += 1;
        }
        let sender = Sender { port, writer: FrameWriter::new(), is_first: true, is_stuck: false };
        Some(Self { sender, session: Session::new(), input: [0; _], unread: 0..0 })
    }

    /// `None`: the port is lost.
    fn poll(&mut self, guests: &impl Guests) -> Option<Polled> {
        self.sender.port.poll().ok()?;
        for _ in 0..READS {
            if self.unread.is_empty() {
                self.unread = 0..self.sender.port.receive(&mut self.input).ok()?;
            }
            let mut bytes = &self.input[self.unread.clone()];
            if bytes.is_empty() {
                return Some(Polled::Nothing);
            }
            let asked = self.session.read(&mut bytes, guests, &mut self.sender);
            self.unread.start = self.unread.end - bytes.len();
            if let Some(asked) = asked {
                return Some(Polled::Command(asked));
            }
        }
        Some(Polled::More)
    }
}

impl Launcher for Sender {
    fn begin(&mut self) {
        self.is_first = true;
    }

    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) {
        // A launcher that has gone needs no answer.
        let _ = Self::send(self, guest, message);
    }

    /// Does not wait for the device. If this returns `false`, the port interrupts when that changes.
    fn offer(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool {
        // A receiver that did not get the welcome begins anew, and with it the session.
        !self.is_first && message.write(guest, &mut self.writer).is_ok_and(|frame| self.port.send(frame).is_ok())
    }
}

impl Sender {
    /// Sends a message, and waits until the device has it.
    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool {
        let Ok(frame) = message.write(guest, &mut self.writer) else { return false };
        let deadline = Deadline::after(if self.is_stuck { 0 } else { PATIENCE });
        let first: &[u8] = if self.is_first { &[DELIMITER] } else { &[] };
        let is_sent = [first, frame].into_iter().all(|bytes| send(&mut self.port, bytes, &deadline));
        self.is_first = !is_sent;
        self.is_stuck = !is_sent && deadline.has_passed();
        is_sent
    }
}

/// Sends all of the bytes, or none. A device that has taken them too late may still send them.
fn send(port: &mut SerialPort<Transport, Memory>, bytes: &[u8], deadline: &Deadline) -> bool {
    // The host may have opened or closed the port. The loops below touch shared memory alone: an access to a register
    // takes the lock that an emulator needs in order to empty the port.
    if port.poll().is_err() {
        return false;
    }
    loop {
        match port.send(bytes) {
            Ok(()) => break,
            Err(SendError::Full) if !deadline.has_passed() => hint::spin_loop(),
            Err(_) => return false,
        }
    }
    loop {
        match port.unsent() {
            Ok(0) => return true,
            Ok(_) if !deadline.has_passed() => hint::spin_loop(),
            _ => return false,
        }
    }
}

/// A moment by the machine's counter.
pub(crate) struct Deadline(u64);

impl Deadline {
    pub(crate) fn after(seconds: u64) -> Self {
        Self(timer::machine_time().saturating_add(seconds.saturating_mul(read_sysreg!(CNTFRQ_EL0))))
    }

    pub(crate) fn has_passed(&self) -> bool {
        timer::machine_time() >= self.0
    }
}

/// The registers of a virtio transport at this address.
#[derive(Debug)]
struct Transport(usize);

impl Registers for Transport {
    fn read(&self, offset: usize) -> u32 {
        let register = core::ptr::with_exposed_provenance::<u32>(self.0 + offset);
        // SAFETY: the caller of `start` promised a mapped transport.
        unsafe { register.read_volatile() }
    }

    fn write(&mut self, offset: usize, value: u32) {
        let register = core::ptr::with_exposed_provenance_mut::<u32>(self.0 + offset);
        // SAFETY: the caller of `start` promised a mapped transport. The device reaches only the memory whose
        // address the driver gives it, and that is [`SHARED`].
        unsafe { register.write_volatile(value) };
    }
}

/// The memory that EL2 shares with the device, in the image: RAM that no guest gets.
#[repr(C, align(4096))]
struct Shared(UnsafeCell<[u8; MEMORY_SIZE]>);

// SAFETY: only `Memory` reaches it, by volatile accesses, and the owner of the device alone has a `Memory` in use.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new([0; MEMORY_SIZE]));

/// The use of [`SHARED`].
#[derive(Debug)]
struct Memory;

impl Memory {
    /// The address of `size` bytes at `at`.
    fn at(&self, at: usize, size: usize) -> *mut u8 {
        assert!(at <= MEMORY_SIZE && size <= MEMORY_SIZE - at, "{size} bytes at {at} of the shared memory");
        // SAFETY: inside of it, as was just checked.
        unsafe { SHARED.0.get().cast::<u8>().add(at) }
    }
}

impl SharedMemory for Memory {
    /// EL2 maps the image one to one.
    fn address(&self) -> u64 {
        SHARED.0.get().expose_provenance() as u64
    }

    fn size(&self) -> usize {
        MEMORY_SIZE
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        let from = self.at(at, bytes.len());
        let is_aligned = from.addr().is_multiple_of(8);
        let (words, rest) = if is_aligned { bytes.as_chunks_mut::<8>() } else { (&mut [][..], bytes) };
        let words_end = from.wrapping_add(8 * words.len());
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the memory, and aligned. The device may write it meanwhile: any bytes will do.
            *word = unsafe { from.cast::<u64>().add(index).read_volatile() }.to_ne_bytes();
        }
        for (index, byte) in rest.iter_mut().enumerate() {
            // SAFETY: inside the memory. As above.
            *byte = unsafe { words_end.add(index).read_volatile() };
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        let (words, rest) = if to.addr().is_multiple_of(8) { bytes.as_chunks::<8>() } else { (&[][..], bytes) };
        for (index, word) in words.iter().enumerate() {
            // SAFETY: inside the memory, to which there are no references, and aligned.
            unsafe { to.cast::<u64>().add(index).write_volatile(u64::from_ne_bytes(*word)) };
        }
        let to = to.wrapping_add(8 * words.len());
        for (index, byte) in rest.iter().enumerate() {
            // SAFETY: inside the memory, to which there are no references.
            unsafe { to.add(index).write_volatile(*byte) };
        }
    }

    fn load(&self, at: usize) -> u16 {
        assert!(at.is_multiple_of(2));
        // SAFETY: inside the memory, and aligned.
        unsafe { self.at(at, 2).cast::<u16>().read_volatile() }
    }

    fn store(&mut self, at: usize, value: u16) {
        assert!(at.is_multiple_of(2));
        // SAFETY: inside the memory, aligned, and there are no references to it.
        unsafe { self.at(at, 2).cast::<u16>().write_volatile(value) };
    }

    /// The device is in the outer shareable domain at most, and notified by a store to its registers.
    fn fence(&self) {
        // SAFETY: a barrier changes nothing.
        unsafe { asm!("dmb osh", options(nostack, preserves_flags)) };
    }
}
