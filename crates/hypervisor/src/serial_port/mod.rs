// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The transport of the control channel: a port of a virtio console, over MMIO, with the feature MULTIPORT.
//!
//! QEMU's `virtserialport` waits for a slow reader, where a plain console drops bytes. Such a port exists only with
//! MULTIPORT, so the driver is our own. It drives port [`PORT`] and ignores others:
//!
//! ```text
//! -global virtio-mmio.force-legacy=false -device virtio-serial-device
//! -chardev socket,... -device virtserialport,chardev=...,nr=1
//! ```
//!
//! # Invariants
//!
//! * Bytes that [`SerialPort::send`] took reach the host in order, as long as the host has the port open. They are one
//!   buffer, so what is lost when the host closes the port is a whole number of sends.
//! * Bytes from the host are kept in the device until [`SerialPort::receive`] takes them. None is dropped: the device has
//!   no buffer then, and the host waits.
//! * Each call does a bounded amount of work, and never waits for the device.
//! * The device is not trusted with more than the shared memory: all of its numbers are checked. After an error, every
//!   call returns the same error.

mod queue;
pub mod shared;
pub mod wire;

use zerocopy::IntoBytes;

pub use queue::{QueueError, SIZE, TooSmall};

use queue::Queue;
use shared::{Registers, SharedMemory};
use wire::{Control, event, feature, register, status};

/// The port's number. (QEMU keeps port 0 for consoles.)
pub const PORT: u16 = 1;
/// The most bytes of one send.
pub const SEND_MAX: usize = 2048;
/// Bytes of memory that the driver shares with the device.
pub const MEMORY_SIZE: usize = queue::bytes(CONTROL_IN_BUFFER)
    + queue::bytes(CONTROL_OUT_BUFFER)
    + queue::bytes(INPUT_BUFFER)
    + queue::bytes(SEND_MAX);

/// A message, and a port's name behind it.
const CONTROL_IN_BUFFER: usize = 128;
const CONTROL_OUT_BUFFER: usize = size_of::<Control>();
const INPUT_BUFFER: usize = 1024;
/// Reads of the status until a reset is complete.
const RESET_READS: u32 = 1 << 16;

/// Why a device cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetUpError {
    /// The memory is too small.
    #[error("{0} bytes of shared memory, and {MEMORY_SIZE} are needed")]
    Memory(usize),
    /// There is no virtio device.
    #[error("no virtio device: its magic number is {0:#x}")]
    Magic(u32),
    /// It is a legacy device. QEMU's become modern by `-global virtio-mmio.force-legacy=false`.
    #[error("a virtio device of version {0}, and 2 is needed")]
    Version(u32),
    /// It is no console.
    #[error("a virtio device of kind {0}, and no console")]
    Device(u32),
    /// A feature is missing.
    #[error("the console lacks the features {0:#x}")]
    Features(u64),
    /// It does not accept the features.
    #[error("the console refuses its own features")]
    Refused,
    /// It has no port beside consoles.
    #[error("the console has at most {0} ports, and port {PORT} is needed")]
    Ports(u32),
    /// A queue is missing or too small.
    #[error(transparent)]
    Queue(#[from] TooSmall),
    /// It does not complete a reset.
    #[error("the console does not complete its reset")]
    Reset,
}

/// The device broke the rules. The port is lost until the driver is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// In a queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// With a message.
    #[error("a control message of {0} bytes")]
    Message(usize),
    /// It says so itself.
    #[error("the console needs a reset")]
    NeedsReset,
}

/// Why bytes were not sent. None of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The host does not have the port open.
    #[error("the host has closed the port")]
    Closed,
    /// The host is slow. The device interrupts when it has room.
    #[error("the port is full")]
    Full,
    /// More than [`SEND_MAX`].
    #[error("{0} bytes at once; {SEND_MAX} are the most")]
    TooLong(usize),
    /// The port is lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A port.
#[derive(Debug)]
pub struct SerialPort<R: Registers, M: SharedMemory> {
    registers: R,
    memory: M,
    control_in: Queue,
    control_out: Queue,
    input: Queue,
    output: Queue,
    /// The device has the port.
    there: bool,
    /// The host has the port open.
    open: bool,
    /// A buffer of input that was not read to its end: its number, where reading goes on, its end.
    partial: Option<(u16, usize, usize)>,
    failed: Option<DeviceError>,
}

impl<R: Registers, M: SharedMemory> SerialPort<R, M> {
    /// Resets the device and sets it up (virtio 1.2, 3.1.1). The port is closed until [`poll`](Self::poll) finds it
    /// opened.
    pub fn new(mut registers: R, mut memory: M) -> Result<Self, SetUpError> {
        if memory.size() < MEMORY_SIZE {
            return Err(SetUpError::Memory(memory.size()));
        }
        identify(&registers)?;
        reset(&mut registers)?;
        let queues = negotiate(&mut registers).and_then(|()| queues(&mut registers, &mut memory));
        let [control_in, control_out, input, output] = match queues {
            Ok(queues) => queues,
            Err(error) => {
                // Nothing of the memory may stay with the device.
                reset(&mut registers)?;
                return Err(error);
            }
        };
        let (there, open, partial, failed) = (false, false, None, None);
        let mut port = Self { registers, memory, control_in, control_out, input, output, there, open, partial, failed };
        port.registers.write(register::STATUS, OPERATING);
        port.control_in.lend_all(&mut port.memory);
        port.input.lend_all(&mut port.memory);
        port.output.want_interrupts(false, &mut port.memory);
        port.control_in.notify(&mut port.registers, &port.memory);
        port.input.notify(&mut port.registers, &port.memory);
        port.tell(event::DEVICE_READY);
        Ok(port)
    }

    /// Acknowledges interrupts and handles the device's messages. To be called for each interrupt, and at any other
    /// time.
    pub fn poll(&mut self) -> Result<(), DeviceError> {
        let reasons = self.registers.read(register::INTERRUPT_STATUS);
        if reasons != 0 {
            self.registers.write(register::INTERRUPT_ACKNOWLEDGE, reasons);
        }
        self.guarded(|port| {
            if port.registers.read(register::STATUS) & status::NEEDS_RESET != 0 {
                return Err(DeviceError::NeedsReset);
            }
            port.reclaim()?;
            // An answer is at most two messages. Without room for them the event waits in its queue.
            while port.control_out.free() >= 2 {
                let Some((id, length)) = port.control_in.take(&port.memory)? else { break };
                let mut message = [0; size_of::<Control>()];
                if length < message.len() {
                    return Err(DeviceError::Message(length));
                }
                port.control_in.copy(id, 0, &mut message, &port.memory);
                port.control_in.give_back(id, &mut port.memory);
                port.control_in.notify(&mut port.registers, &port.memory);
                let message: Control = zerocopy::transmute!(message);
                port.handle(message);
            }
            Ok(())
        })
    }

    /// Whether the device has announced the port. The host may open it later.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.there
    }

    /// Whether the host has the port open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open && self.failed.is_none()
    }

    /// Sends all of the bytes, or none.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), SendError> {
        if bytes.len() > SEND_MAX {
            return Err(SendError::TooLong(bytes.len()));
        }
        self.guarded(Self::reclaim)?;
        if !self.open {
            return Err(SendError::Closed);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if self.output.free() == 0 {
            self.output.want_interrupts(true, &mut self.memory);
            self.guarded(Self::reclaim)?;
        }
        if !self.output.send(bytes, &mut self.memory) {
            return Err(SendError::Full);
        }
        self.output.notify(&mut self.registers, &self.memory);
        Ok(())
    }

    /// How many sends the device has not completed. Each completed one is in the host.
    pub fn unsent(&mut self) -> Result<u32, DeviceError> {
        self.guarded(|port| {
            port.reclaim()?;
            Ok(u32::from(SIZE) - port.output.free())
        })
    }

    /// Takes bytes that came from the host, and returns how many: 0 if there are none now.
    pub fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, DeviceError> {
        self.guarded(|port| {
            let (mut received, mut gave_back) = (0, false);
            // Each round empties a buffer or fills `bytes`, and a device may return buffers without end.
            for _ in 0..SIZE {
                if received == bytes.len() {
                    break;
                }
                let taken = match port.partial.take() {
                    Some(partial) => Some(partial),
                    None => port.input.take(&port.memory)?.map(|(id, length)| (id, 0, length)),
                };
                let Some((id, from, end)) = taken else { break };
                let count = (end - from).min(bytes.len() - received);
                port.input.copy(id, from, &mut bytes[received..][..count], &port.memory);
                received += count;
                if from + count < end {
                    port.partial = Some((id, from + count, end));
                } else {
                    port.input.give_back(id, &mut port.memory);
                    gave_back = true;
                }
            }
            if gave_back {
                port.input.notify(&mut port.registers, &port.memory);
            }
            Ok(received)
        })
    }

    /// Handles a message of the device.
    fn handle(&mut self, message: Control) {
        if message.port != u32::from(PORT) {
            return;
        }
        match message.event.get() {
            event::PORT_ADD => {
                self.there = true;
                self.tell(event::PORT_READY);
                self.tell(event::PORT_OPEN);
                // QEMU ignored the notification of the input's buffers while the port was closed, and does not ask its
                // socket for bytes before there is one.
                self.input.notify(&mut self.registers, &self.memory);
            }
            event::PORT_REMOVE => (self.there, self.open) = (false, false),
            event::PORT_OPEN => self.open = message.value != 0,
            _ => {}
        }
    }

    /// Sends a message with the value 1. The caller has seen that there is room.
    fn tell(&mut self, event: u16) {
        let message = Control { port: u32::from(PORT).into(), event: event.into(), value: 1.into() };
        if self.control_out.send(message.as_bytes(), &mut self.memory) {
            self.control_out.notify(&mut self.registers, &self.memory);
        }
    }

    /// Takes back buffers that were sent.
    fn reclaim(&mut self) -> Result<(), DeviceError> {
        for _ in 0..SIZE {
            if self.control_out.take(&self.memory)?.is_none() {
                break;
            }
        }
        for _ in 0..SIZE {
            if self.output.take(&self.memory)?.is_none() {
                break;
            }
            self.output.want_interrupts(false, &mut self.memory);
        }
        Ok(())
    }

    /// Does it unless the device has failed, and remembers if it fails now.
    fn guarded<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        match self.failed {
            Some(error) => Err(error),
            None => act(self).inspect_err(|&error| self.failed = Some(error)),
        }
    }
}

impl<R: Registers, M: SharedMemory> Drop for SerialPort<R, M> {
    /// The device must not use the memory any longer.
    fn drop(&mut self) {
        let _ = reset(&mut self.registers);
    }
}

const OPERATING: u32 = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK;

fn identify(registers: &impl Registers) -> Result<(), SetUpError> {
    match registers.read(register::MAGIC) {
        wire::MAGIC => {}
        other => return Err(SetUpError::Magic(other)),
    }
    match registers.read(register::VERSION) {
        wire::VERSION => {}
        other => return Err(SetUpError::Version(other)),
    }
    match registers.read(register::DEVICE_ID) {
        wire::CONSOLE => Ok(()),
        other => Err(SetUpError::Device(other)),
    }
}

fn reset(registers: &mut impl Registers) -> Result<(), SetUpError> {
    registers.write(register::STATUS, 0);
    let done = (0..RESET_READS).any(|_| registers.read(register::STATUS) == 0);
    if done { Ok(()) } else { Err(SetUpError::Reset) }
}

fn negotiate(registers: &mut impl Registers) -> Result<(), SetUpError> {
    let wanted = feature::MULTIPORT | feature::VERSION_1;
    registers.write(register::STATUS, status::ACKNOWLEDGE);
    registers.write(register::STATUS, status::ACKNOWLEDGE | status::DRIVER);
    let mut offered = 0;
    for word in 0..2 {
        registers.write(register::DEVICE_FEATURES_SELECT, word);
        offered |= u64::from(registers.read(register::DEVICE_FEATURES)) << (32 * word);
    }
    if offered & wanted != wanted {
        return Err(SetUpError::Features(wanted & !offered));
    }
    for word in 0..2 {
        registers.write(register::DRIVER_FEATURES_SELECT, word);
        registers.write(register::DRIVER_FEATURES, (wanted >> (32 * word)) as u32);
    }
    let agreed = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK;
    registers.write(register::STATUS, agreed);
    if registers.read(register::STATUS) & status::FEATURES_OK == 0 {
        return Err(SetUpError::Refused);
    }
    match registers.read(register::PORTS_MAX) {
        ports if ports > PORT.into() => Ok(()),
        ports => Err(SetUpError::Ports(ports)),
    }
}

fn queues(registers: &mut impl Registers, memory: &mut impl SharedMemory) -> Result<[Queue; 4], SetUpError> {
    let (input, mut end) = (wire::input_queue(PORT), 0);
    let mut queue = |number, buffer, to_driver| {
        let at = end;
        end += queue::bytes(buffer);
        Queue::set_up(number, at, buffer, to_driver, &mut *registers, &mut *memory)
    };
    Ok([
        queue(wire::CONTROL_IN, CONTROL_IN_BUFFER, true)?,
        queue(wire::CONTROL_IN + 1, CONTROL_OUT_BUFFER, false)?,
        queue(input, INPUT_BUFFER, true)?,
        queue(input + 1, SEND_MAX, false)?,
    ])
}
