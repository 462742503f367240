// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtio devices under any accesses of a guest, any bytes in its memory, pages that come and go, and far ends that
//! answer when and in which order they please.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};
use twofold_devices::virtio::balloon::Pages;
use twofold_devices::virtio::block::{Disk, DiskConfig, DiskError, Full, Operation, Tag};
use twofold_devices::virtio::console::Terminal;
use twofold_devices::virtio::net::Port;
use twofold_devices::virtio::rng::Entropy;
use twofold_devices::virtio::{Balloon, Block, Console, Model, Net, Next, Rng, Virtio};
use twofold_devices::{GuestRam, RamError, Width};

use crate::any;

const BASE: u64 = 0x4000_0000;
const SIZE: u64 = 0x1_0000;
const PAGE: u64 = 0x1000;
const SECTORS: u64 = 64;
const STATUS: u64 = 0x70;
const NEEDS_RESET: u64 = 64;
/// The most accesses of memory in one poll: 16 chains in each of three queues, of 64 descriptors and 64 buffers.
const ACCESSES: usize = 3 * 16 * (2 * 64 + 16);

/// Bytes are refused as a state, or are the state of the device that they make. No access panics. A device reaches no
/// memory that is not RAM, and a bounded amount of it in one poll. The line is InterruptStatus. A device that needs a
/// reset touches nothing. Saved and restored, a device goes on.
pub fn virtio(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = run(&mut u);
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let disk = DiskConfig { sectors: SECTORS, is_read_only: u.arbitrary()?, id: [b'x'; 20] };
    match u.int_in_range(0..=4)? {
        0 => drive(u, || Block::new(disk), FakeDisk::default()),
        1 => drive(u, || Console::new(80, 25), Wire::default()),
        2 => drive(u, || Net::new([2; 6]), Wire::default()),
        3 => drive(u, Balloon::new, Wire::default()),
        _ => drive(u, Rng::new, Wire::default()),
    }
}

/// What a device is connected to.
trait FarEnd<M> {
    fn poll(&mut self, device: &mut Virtio<M>, ram: &Ram, line: &mut bool) -> Next;

    /// Something happens at the far end.
    fn happen(&mut self, u: &mut Unstructured<'_>, device: &mut Virtio<M>, ram: &Ram, line: &mut bool) -> Result<()>;

    /// The far end forgets what it has in work.
    fn forget(&mut self) {}
}

fn drive<M: Model, F: FarEnd<M>>(u: &mut Unstructured<'_>, fresh: impl Fn() -> Virtio<M>, mut far: F) -> Result<()> {
    let (mut device, mut line, ram) = (fresh(), false, Ram::new());
    if u.ratio(1, 8)? {
        let bytes = u.arbitrary::<&[u8]>()?;
        if let Ok(restored) = fresh().with_state(bytes) {
            assert_eq!(save(&restored), bytes);
            line = restored.interrupt();
            device = restored;
        }
    }
    while !u.is_empty() {
        match u.int_in_range(0..=15)? {
            0 => _ = device.read(any::register(u)?, any::width(u)?),
            1 => _ = device.write(any::register(u)?, any::width(u)?, u.arbitrary()?, &mut line),
            2 => start(u, &mut device, &mut line)?,
            3 => {
                let bytes = u.arbitrary::<&[u8]>()?;
                ram.poke(address(u)?, bytes);
            }
            4..=6 => {
                // A descriptor of one of two tables, or of an indirect one.
                let at = BASE + u.int_in_range(0..=3)? * PAGE + u.int_in_range(0..=17)? * 16;
                let length = if u.ratio(7, 8)? { u.int_in_range(0..=0x600)? } else { u.arbitrary()? };
                let flags = if u.ratio(7, 8)? { u.int_in_range(0..=7)? } else { u.arbitrary()? };
                let next = if u.ratio(7, 8)? { u.int_in_range(0..=17)? } else { u.arbitrary::<u16>()? };
                let start = if u.ratio(1, 4)? { BASE + 2 * PAGE } else { address(u)? };
                let length: u32 = if flags == 4 { length / 16 * 16 } else { length };
                let flags: u16 = flags;
                let bytes =
                    [&start.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
                ram.poke(at, &bytes.concat());
            }
            7..=8 => {
                // A chain becomes available.
                let queue = u.int_in_range(0..=2)?;
                let ring = BASE + 4 * PAGE + queue * PAGE;
                let index = ram.peek16(ring + 2);
                let head: u16 = u.int_in_range(0..=17)?;
                ram.poke(ring + 4 + 2 * u64::from(index % 16), &head.to_le_bytes());
                ram.poke(ring + 2, &index.wrapping_add(1).to_le_bytes());
                device.write(0x50, Width::Word, queue, &mut line);
            }
            9 => {
                let page = BASE + u.int_in_range(0..=15)? * PAGE;
                if !ram.absent.borrow_mut().insert(page) {
                    ram.absent.borrow_mut().remove(&page);
                }
            }
            10 => {
                device = fresh().with_state(&save(&device)).expect("a device's state is one");
                far.forget();
            }
            11 => device.reset(&mut line),
            12 => far.happen(u, &mut device, &ram, &mut line)?,
            _ => {
                let needs_reset = device.read(STATUS, Width::Word) & NEEDS_RESET != 0;
                ram.accesses.set(0);
                let next = far.poll(&mut device, &ram, &mut line);
                assert!(ram.accesses.get() <= ACCESSES, "{} accesses", ram.accesses.get());
                assert!(!needs_reset || next == Next::Idle && ram.accesses.get() == 0);
                match next {
                    Next::Absent(address) => assert!(ram.absent.borrow().contains(&(address / PAGE * PAGE))),
                    Next::Broken(_) => assert!(device.read(STATUS, Width::Word) & NEEDS_RESET != 0),
                    Next::Idle | Next::Again => {}
                }
            }
        }
        assert_eq!(line, device.read(0x60, Width::Word) != 0);
        assert_eq!(line, device.interrupt());
    }
    Ok(())
}

/// A driver starts: any features, and queues that are in order.
fn start<M: Model>(u: &mut Unstructured<'_>, device: &mut Virtio<M>, line: &mut bool) -> Result<()> {
    let features = u.arbitrary::<u32>()? & device_features(device, line);
    let mut set = |offset: u64, value: u64| _ = device.write(offset, Width::Word, value, line);
    for (offset, value) in
        [(STATUS, 0), (STATUS, 3), (0x24, 0), (0x20, features.into()), (0x24, 1), (0x20, 1), (STATUS, 11)]
    {
        set(offset, value);
    }
    for queue in 0..3 {
        set(0x30, queue);
        set(0x38, 16);
        for (offset, page) in [(0x80, 0), (0x90, 4), (0xa0, 7)] {
            set(offset, BASE + (page + queue) * PAGE);
        }
        set(0x44, 1);
    }
    set(STATUS, 15);
    Ok(())
}

fn device_features<M: Model>(device: &mut Virtio<M>, line: &mut bool) -> u32 {
    device.write(0x14, Width::Word, 0, line);
    device.read(0x10, Width::Word) as u32
}

/// Mostly an address of RAM.
fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.arbitrary::<u8>()? {
        0..0xf0 => BASE + u.int_in_range(0..=SIZE)?,
        _ => u.arbitrary()?,
    })
}

fn save<M: Model>(device: &Virtio<M>) -> Vec<u8> {
    let mut room = vec![0; Virtio::<M>::STATE_MAX];
    device.state(&mut room).expect("the room is large enough").to_vec()
}

struct Ram {
    bytes: RefCell<Vec<u8>>,
    absent: RefCell<BTreeSet<u64>>,
    accesses: Cell<usize>,
}

impl Ram {
    fn new() -> Self {
        let bytes = RefCell::new(vec![0; SIZE as usize]);
        Self { bytes, absent: RefCell::default(), accesses: Cell::new(0) }
    }

    fn poke(&self, address: u64, bytes: &[u8]) {
        let places =
            address.checked_sub(BASE).and_then(|first| self.bytes.borrow().get(first as usize..).map(<[u8]>::len));
        if let Some(room) = places {
            let length = room.min(bytes.len());
            self.bytes.borrow_mut()[(address - BASE) as usize..][..length].copy_from_slice(&bytes[..length]);
        }
    }

    fn peek16(&self, address: u64) -> u16 {
        let at = (address - BASE) as usize;
        u16::from_le_bytes([self.bytes.borrow()[at], self.bytes.borrow()[at + 1]])
    }

    fn check(&self, address: u64, length: usize) -> core::result::Result<usize, RamError> {
        self.accesses.set(self.accesses.get() + 1);
        assert!(length > 0);
        let end = address.checked_add(length as u64).expect("an access beyond the last address");
        if address < BASE || end > BASE + SIZE {
            return Err(RamError::NotRam(address));
        }
        let absent = self.absent.borrow().range(address / PAGE * PAGE..end).next().copied();
        absent.map_or(Ok((address - BASE) as usize), |page| Err(RamError::Absent(page.max(address))))
    }
}

impl GuestRam for Ram {
    fn read(&self, address: u64, bytes: &mut [u8]) -> core::result::Result<(), RamError> {
        let first = self.check(address, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.borrow()[first..][..bytes.len()]);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> core::result::Result<(), RamError> {
        let first = self.check(address, bytes.len())?;
        self.bytes.borrow_mut()[first..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[derive(Default)]
struct FakeDisk {
    pending: Vec<(Tag, Operation)>,
    is_full: bool,
}

impl Disk for FakeDisk {
    fn begin(&mut self, tag: Tag, operation: Operation) -> core::result::Result<(), Full> {
        if self.is_full {
            return Err(Full);
        }
        let (sector, sectors) = match operation {
            Operation::Flush => (0, 0),
            Operation::Read { sector, sectors }
            | Operation::Write { sector, sectors, .. }
            | Operation::Discard { sector, sectors }
            | Operation::WriteZeroes { sector, sectors, .. } => (sector, sectors),
        };
        // Before a restore, the disk may have had any size.
        assert!(sector.checked_add(sectors.into()).is_some());
        assert!(self.pending.iter().all(|(other, _)| *other != tag));
        self.pending.push((tag, operation));
        Ok(())
    }
}

impl FarEnd<<Block as Of>::Model> for FakeDisk {
    fn poll(&mut self, device: &mut Block, ram: &Ram, line: &mut bool) -> Next {
        device.poll(ram, self, line)
    }

    fn happen(&mut self, u: &mut Unstructured<'_>, device: &mut Block, ram: &Ram, line: &mut bool) -> Result<()> {
        match u.int_in_range(0..=7)? {
            0 => self.is_full = u.arbitrary()?,
            1 => device.resize(u.int_in_range(0..=SECTORS)?, line),
            _ if self.pending.is_empty() => {}
            _ => {
                let (tag, operation) = self.pending.swap_remove(u.choose_index(self.pending.len())?);
                let (offset, length) = (u.int_in_range(0..=0x800)?, u.int_in_range(1..=0x800)?);
                let fetched = device.fetch(tag, ram, offset, &mut vec![0; length]);
                let stored = device.store(tag, ram, offset, &vec![7; length]);
                let (output, input) = match operation {
                    Operation::Write { sectors, .. } => (sectors * 512, 0),
                    Operation::Read { sectors, .. } => (0, sectors * 512),
                    _ => (0, 0),
                };
                let end = offset + length as u32;
                assert!(fetched.is_err() || end <= output);
                assert!(stored.is_err() || end <= input);
                let result = if u.arbitrary()? { Ok(()) } else { Err(DiskError) };
                device.complete(tag, result).expect("it was begun");
                assert!(device.complete(tag, result).is_err());
            }
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.pending.clear();
    }
}

/// A terminal, a network port, or a source of random bytes.
#[derive(Default)]
struct Wire {
    input: Vec<Vec<u8>>,
    room: usize,
}

impl Wire {
    fn change(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        if u.arbitrary()? {
            self.room = u.int_in_range(0..=5000)?;
        } else {
            let length = u.int_in_range(1..=2000)?;
            self.input.insert(0, vec![length as u8; length]);
        }
        Ok(())
    }
}

impl Pages for Wire {
    fn inflate(&mut self, page: u64, _: bool) -> core::result::Result<bool, RamError> {
        assert!(page.is_multiple_of(PAGE));
        let is_ram = (BASE..BASE + SIZE).contains(&page);
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        if is_ram { Ok(has_room) } else { Err(RamError::NotRam(page)) }
    }

    fn deflate(&mut self, page: u64) {
        assert!(page.is_multiple_of(PAGE));
    }

    fn report(&mut self, address: u64, length: u32) -> core::result::Result<u32, RamError> {
        assert!(length > 0 && address.checked_add(length.into()).is_some());
        self.room = self.room.saturating_sub(1);
        Ok(if self.room > 0 { length } else { 1 })
    }

    fn forget(&mut self) {}
}

impl Terminal for Wire {
    fn output(&mut self, bytes: &[u8]) -> usize {
        let taken = self.room.min(bytes.len());
        self.room -= taken;
        taken
    }

    fn input(&self) -> &[u8] {
        self.input.last().map_or(&[], Vec::as_slice)
    }

    fn consume(&mut self, count: usize) {
        let last = self.input.last_mut().expect("there was input");
        last.drain(..count);
        if last.is_empty() {
            self.input.pop();
        }
    }
}

impl Port for Wire {
    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn send(&mut self, frame: &[u8]) {
        assert!((14..=1514).contains(&frame.len()));
        self.room = self.room.checked_sub(1).expect("there was room");
    }

    fn incoming(&self) -> Option<&[u8]> {
        self.input.last().map(Vec::as_slice)
    }

    fn consume(&mut self) {
        self.input.pop().expect("there was a frame");
    }
}

impl Entropy for Wire {
    fn fill(&mut self, bytes: &mut [u8]) -> usize {
        let count = self.room.min(bytes.len());
        self.room -= count;
        bytes[..count].fill(9);
        count
    }
}

/// The model of a device.
trait Of {
    type Model;
}

impl<M> Of for Virtio<M> {
    type Model = M;
}

impl FarEnd<<Console as Of>::Model> for Wire {
    fn poll(&mut self, device: &mut Console, ram: &Ram, line: &mut bool) -> Next {
        device.poll(ram, self, line)
    }

    fn happen(&mut self, u: &mut Unstructured<'_>, device: &mut Console, _: &Ram, line: &mut bool) -> Result<()> {
        if u.ratio(1, 8)? {
            device.resize(u.arbitrary()?, u.arbitrary()?, line);
        }
        self.change(u)
    }
}

impl FarEnd<<Balloon as Of>::Model> for Wire {
    fn poll(&mut self, device: &mut Balloon, ram: &Ram, line: &mut bool) -> Next {
        device.poll(ram, self, line)
    }

    fn happen(&mut self, u: &mut Unstructured<'_>, device: &mut Balloon, _: &Ram, line: &mut bool) -> Result<()> {
        self.change(u)?;
        device.ask_for(u.arbitrary()?, line);
        Ok(())
    }
}

impl FarEnd<<Net as Of>::Model> for Wire {
    fn poll(&mut self, device: &mut Net, ram: &Ram, line: &mut bool) -> Next {
        device.poll(ram, self, line)
    }

    fn happen(&mut self, u: &mut Unstructured<'_>, device: &mut Net, _: &Ram, line: &mut bool) -> Result<()> {
        if u.ratio(1, 8)? {
            device.set_link(u.arbitrary()?, line);
        }
        self.change(u)
    }
}

impl FarEnd<<Rng as Of>::Model> for Wire {
    fn poll(&mut self, device: &mut Rng, ram: &Ram, line: &mut bool) -> Next {
        device.poll(ram, self, line)
    }

    fn happen(&mut self, u: &mut Unstructured<'_>, _: &mut Rng, _: &Ram, _: &mut bool) -> Result<()> {
        self.change(u)
    }
}
