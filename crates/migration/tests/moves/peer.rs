// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Post-copy into a memory whose store is the source: each absent page is a fault of the guest's memory, in each mode of
//! asynchronous faults, over links that are cut. The guest's program checks each word, and each page that comes is
//! compared with the stopped source's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use twofold_abi::async_fault::{ENABLE, WAKE_ALL, area};
use twofold_machine::fast::FastPlatform;
use twofold_machine::vm::{FastCpu, Left, RunError};
use twofold_memory::async_fault::interrupts::{CpuInterface, Group, Interrupt};
use twofold_memory::async_fault::{AbsentPage, Arrivals, Context, Host, Mode, Next, Ticket, VcpuFaults, Wait};
use twofold_memory::dirty::Tracker;
use twofold_memory::swap::{Located, Waiter};
use twofold_memory::{Error, GuestFault, GuestMemory};
use twofold_migration::Asked;
use twofold_migration::plan::Wanted;
use twofold_migration::postcopy::{FetchError, Peer, Served, TargetState};
use twofold_migration::precopy::Postcopy;
use twofold_migration::ram::{Ahead, SourceRam};
use twofold_migration::stream::Message;
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::guest::{Guest, PAGE, Place, Swap, address_of, capabilities, hello, places, slots};
use crate::link::Virtual;
use crate::moved::Move;
use crate::postcopied::{Cut, Switched, places_of, relink, switch, taken};
use crate::store::Store;
use crate::{Random, setting};

type Memory = GuestMemory<FastPlatform>;

/// The machine of one vCPU, as its faults see it.
struct VcpuHost<'g> {
    vcpu: u32,
    memory: &'g Memory,
    raised: usize,
}

impl Host for VcpuHost<'_> {
    type Memory = Memory;

    fn memory(&self) -> &Memory {
        self.memory
    }

    fn start(&mut self, ticket: Ticket, absent: &AbsentPage) {
        self.memory.bring(absent.page, Waiter::Vcpu { vcpu: self.vcpu, ticket }).unwrap();
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.memory.forget(Waiter::Vcpu { vcpu: self.vcpu, ticket });
    }

    fn map(&mut self, fault: &GuestFault) {
        let _ = self.memory.fault(fault).unwrap();
    }

    fn raise(&mut self) {
        self.raised += 1;
    }

    fn lower(&mut self) {}

    fn can_take_interrupt(&mut self) -> bool {
        false
    }
}

/// The faults of one vCPU.
struct Faults {
    faults: VcpuFaults<Memory>,
    arrivals: Arrivals,
    number: usize,
    /// Stops, and absent pages.
    stopped: usize,
    waited: usize,
}

impl Faults {
    fn new(mode: Mode, number: usize) -> Self {
        let (faults, arrivals) = (VcpuFaults::new(mode), Arrivals::new());
        Self { faults, arrivals, number, stopped: 0, waited: 0 }
    }

    fn host<'g>(&self, memory: &'g Memory) -> VcpuHost<'g> {
        VcpuHost { vcpu: self.number as u32, memory, raised: 0 }
    }

    /// The vCPU goes on by a write, if it can. Returns whether it did.
    fn step(&mut self, guest: &Guest) -> bool {
        let (memory, mut host) = (guest.vm.memory(), self.host(guest.vm.memory()));
        match self.faults.before_entry(&self.arrivals, &mut host) {
            Next::Enter => {}
            Next::Wait(_) => return false,
            Next::Stop { .. } => {
                self.stopped += 1;
                return false;
            }
        }
        let cpu = FastCpu { machine: Arc::clone(&guest.machine), number: self.number };
        let vcpu = &mut guest.vcpus.lock().unwrap()[self.number];
        vcpu.program_mut().budget = 1;
        let fault = match guest.vm.run(&cpu, vcpu, |_| 0) {
            Ok(Left::Ended) => return true,
            Err(RunError::Memory { fault, error: Error::Absent { .. } }) => fault,
            other => panic!("{other:?}"),
        };
        self.waited += 1;
        let next = self.faults.fault(&self.arrivals, &mut self.host(memory), &AbsentPage::of(&fault), &context());
        assert!(matches!(next, Next::Wait(Wait::Page | Wait::PageOrInterrupt) | Next::Stop { .. }), "{next:?}");
        false
    }
}

/// A guest in user mode that takes any interrupt.
fn context() -> Context {
    let interface = CpuInterface { enabled: [false, true], mask: 0xf0, running: 0xff, binary_point: [0, 1] };
    let ppi = Interrupt { group: Group::One, enabled: true, pending: false, active: false, priority: 0xa0 };
    Context { pc: 0, pstate: 0, interface, ppi }
}

/// A guest that has changed hands, with its vCPUs' faults.
struct Running<'g, 'v> {
    switched: Switched<'g, 'v>,
    peer: Arc<Peer<FastPlatform>>,
    ahead: Ahead<<twofold_migration::ram::GuestRam<'g, FastPlatform> as SourceRam>::Away>,
    vcpus: Vec<Faults>,
    /// Pages that a vCPU may have written since.
    checked: BTreeSet<(usize, u64)>,
}

/// Has the target's memory take its absent pages from the source.
fn with_peer(there: &mut Place) -> Arc<Peer<FastPlatform>> {
    let peer = Arc::new(Peer::new(FastPlatform(Arc::clone(&there.machine)), &slots(), Box::new(|| ())));
    there.peer = Some(Arc::clone(&peer));
    peer
}

impl<'g, 'v> Running<'g, 'v> {
    fn new(switched: Switched<'g, 'v>, peer: Arc<Peer<FastPlatform>>, mode: Mode) -> Self {
        let vcpus = (0..2).map(|number| Faults::new(mode, number)).collect();
        Self { switched, peer, ahead: Ahead::new(), vcpus, checked: BTreeSet::new() }
    }

    fn memory(&self) -> &Memory {
        self.switched.guest.vm.memory()
    }

    /// Takes what has arrived to the vCPUs.
    fn deliver(&self) {
        for (waiter, arrival) in self.switched.guest.reports.take() {
            if let Waiter::Vcpu { vcpu, ticket } = waiter {
                let _ = self.vcpus[vcpu as usize].arrivals.complete(ticket, arrival);
            }
        }
    }

    /// A vCPU goes on, and the source learns which page it needs.
    fn step(&mut self, vcpu: usize) -> Result<bool, Cut> {
        self.deliver();
        let goes_on = self.vcpus[vcpu].step(&self.switched.guest);
        self.ask()?;
        Ok(goes_on)
    }

    fn ask(&mut self) -> Result<(), Cut> {
        let Switched { link, sends, .. } = &mut self.switched;
        for _ in 0..self.peer.ask(&mut link.answers).map_err(|error| Cut::Target(error.into()))? {
            let Asked::Pages { waits: true, slot, page, count } = link.asked.asked().map_err(Cut::Asked)? else {
                panic!("another question")
            };
            sends.request(true, slot, page, count).unwrap();
        }
        Ok(())
    }

    /// The source sends a page, and the target's memory gets it. Returns whether there may be more.
    fn page(&mut self, from: &'g Guest) -> Result<bool, Cut> {
        let ram = from.ram(Tracker::Manual);
        let Switched { link, sends, guest, .. } = &mut self.switched;
        match link.outgoing.send(sends, &ram, &mut self.ahead).map_err(Cut::Source)? {
            Served::Page(slot, page) => {
                self.peer.receive(guest.vm.memory(), &mut link.incoming).map_err(Cut::Target)?;
                self.check(slot, page);
                Ok(true)
            }
            Served::Later => {
                from.finish();
                Ok(true)
            }
            Served::All => Ok(false),
        }
    }

    /// A page that came is the stopped source's, before the guest is entered again.
    fn check(&mut self, slot: usize, page: u64) {
        let ipa = Ipa::new((slots()[slot].first + page) * PAGE);
        assert!(matches!(self.memory().locate(ipa), Ok(Located::Present | Located::Zero)), "page {page}");
        let place = places_of().position(|place| place == (slot, page)).unwrap();
        if self.checked.insert((slot, page)) {
            assert_eq!(self.switched.guest.digest(slot, page), self.switched.stopped[place], "page {page} of {slot}");
        }
    }

    /// The link is cut: the guest stops where it needs an absent page, with a reason.
    fn cut(&mut self, why: &Cut) {
        let why = match why {
            Cut::Source(error) => error.to_string(),
            Cut::Asked(error) => error.to_string(),
            Cut::Target(error) => error.to_string(),
        };
        self.peer.cut(self.memory(), &why);
        let TargetState::Stopped { absent, reason, .. } = self.peer.state() else { return };
        assert!(!reason.is_empty() && absent > 0);
        self.deliver();
        for vcpu in 0..2 {
            let mut left = 2000;
            while left > 0 && self.vcpus[vcpu].step(&self.switched.guest) {
                left -= 1;
            }
            // What it needed is known to fail by now.
            self.deliver();
            let _ = self.vcpus[vcpu].step(&self.switched.guest);
            assert!(left > 0 || absent < 100, "{absent} pages are absent, and it needs none of them");
        }
        assert_eq!(self.memory().frame_use().arriving, 0, "a request is in flight to nowhere");
    }

    /// Goes on over a new link, which is cut after some bytes.
    fn reconnect(&mut self, clock: &'v Virtual<'g>, cuts: [Option<u64>; 2]) -> Result<(), Cut> {
        let (hello, peer) = (hello(clock.rates.len() as u32), &self.peer);
        self.switched.link = relink(&mut self.switched.sends, clock, cuts, |stream, answers| {
            peer.resume(stream, capabilities(), &hello, taken(), answers)
        })?;
        let memory = self.switched.guest.vm.memory();
        for vcpu in &mut self.vcpus {
            let mut host = vcpu.host(memory);
            vcpu.faults.retry_failed(&vcpu.arrivals, &mut host);
        }
        Ok(())
    }

    /// The guest, without its links to the source.
    fn into_guest(self) -> Guest {
        self.switched.guest
    }

    /// The target has all pages, and says so.
    fn complete(&mut self) -> Result<(), Cut> {
        let said = self.switched.link.answers.message(&Message::Complete);
        said.map_err(|error| Cut::Target(error.into()))?;
        // Questions may be before it that were answered meanwhile.
        while self.switched.link.asked.asked().map_err(Cut::Asked)? != Asked::Complete {}
        Ok(())
    }
}

/// Runs a guest to the end of post-copy. Returns absent pages that vCPUs waited for.
fn runs<'g>(mut running: Running<'g, '_>, from: &'g Guest, seed: u64) -> usize {
    let mut random = Random(seed);
    while running.peer.state() != TargetState::Complete {
        running.step(random.below(2) as usize).unwrap();
        if random.below(3) == 0 {
            assert!(running.page(from).unwrap());
        }
    }
    running.complete().unwrap();
    let (guest, stopped) = (&running.switched.guest, running.vcpus.iter().map(|vcpu| vcpu.stopped).sum::<usize>());
    assert_eq!(stopped, 0);
    guest.work(0, 1000);
    guest.work(1, 1000);
    running.vcpus.iter().map(|vcpu| vcpu.waited).sum()
}

#[test]
fn absent_pages_are_asynchronous_faults_in_each_mode() {
    for mode in [Mode::Off, Mode::Halt, Mode::Pv] {
        for swapped in [false, true] {
            let [mut here, mut there] = places();
            if swapped {
                here.swap = Some(Swap::with(&Store::new(0, 1), None));
            }
            let from = here.boot(2, (40, 80));
            if swapped {
                from.leave();
            }
            let peer = with_peer(&mut there);
            let clock = Virtual::new(&from, 10, &[0, 0]);
            let all = Move::new(Tracker::Manual);
            let switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
            let used = switched.guest.vm.memory().frame_use();
            assert_eq!((used.data, peer.state()), (0, TargetState::Fetching { absent: 395 }));
            let waited = runs(Running::new(switched, peer, mode), &from, 5);
            assert!(waited > 20, "{mode:?}: {waited}");
        }
    }
}

/// Pages that nothing wants come too, and those of zeroes take no frame.
#[test]
fn zero_pages_stay_free() {
    let [mut here, mut there] = places();
    let from = here.boot(2, (40, 80));
    let zero: u64 = places_of().map(|(slot, page)| u64::from(from.digest(slot, page) == digest_of_zeroes())).sum();
    assert!(zero > 150 && zero < 390, "{zero}");
    let peer = with_peer(&mut there);
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Manual);
    let switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    let mut running = Running::new(switched, peer, Mode::Off);
    while running.page(&from).unwrap() {}
    assert_eq!(running.peer.state(), TargetState::Complete);
    assert_eq!(running.memory().frame_use().data, 395 - zero);
}

fn digest_of_zeroes() -> u64 {
    xxhash_rust::xxh3::xxh3_64(&[0; 4096])
}

/// Pre-copy has sent all pages, and many have been written since: what came is old.
#[test]
fn what_was_written_since_it_was_sent_comes_again() {
    let [mut here, mut there] = places();
    let from = here.boot(2, (390, 100));
    let peer = with_peer(&mut there);
    let clock = Virtual::new(&from, 1000, &[3_000_000, 0]);
    let wanted = Wanted { rounds: 2, throttle: 0, forced: false, ..Move::new(Tracker::Manual).wanted };
    let all = Move { wanted, ..Move::new(Tracker::Manual) };
    let switched = switch(&all, Postcopy::IfNeeded, &clock, &mut there, 1).unwrap().unwrap();
    let TargetState::Fetching { absent } = peer.state() else { panic!("{:?}", peer.state()) };
    assert!(absent > 50 && absent < 391, "{absent}");
    runs(Running::new(switched, peer, Mode::Halt), &from, 6);
}

#[test]
fn a_guest_whose_link_is_cut_stops_and_goes_on() {
    let (cuts, seed) = (setting("TWOFOLD_CUTS", 40), setting("TWOFOLD_SEED", 1));
    println!("TWOFOLD_SEED={seed}");
    let (mut random, mut cut, mut stopped) = (Random(seed), 0, 0);
    while cut < cuts {
        let [mut here, mut there] = places();
        let from = here.boot(2, (40, 80));
        let peer = with_peer(&mut there);
        let clock = Virtual::new(&from, 10, &[0, 0]);
        let all = Move::new(Tracker::Manual);
        let switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
        let mut running = Running::new(switched, peer, [Mode::Off, Mode::Halt][random.below(2) as usize]);
        // The first link is cut between two records.
        let mut ended: Result<(), Cut> = Err(Cut::Target(FetchError::Ended));
        let mut is_over = false;
        while !is_over {
            if let Err(why) = ended {
                cut += 1;
                running.cut(&why);
                let left = random.below(120_000);
                let cuts = [Some(left), None, Some(left % 900), Some(left)];
                let answers = if random.below(3) == 0 { Some(random.below(700)) } else { None };
                ended = running.reconnect(&clock, [cuts[random.below(4) as usize], answers]);
                continue;
            }
            ended = (|| {
                running.ask()?;
                let _ = [running.step(0)?, running.step(1)?];
                running.page(&from)?;
                if running.peer.state() == TargetState::Complete {
                    running.complete()?;
                    is_over = true;
                }
                Ok(())
            })();
        }
        stopped += running.vcpus.iter().map(|vcpu| vcpu.stopped).sum::<usize>();
        let guest = running.into_guest();
        here.end(from);
        guest.work(0, 1000);
        guest.work(1, 1000);
    }
    println!("{cut} links cut, {stopped} stops");
    assert!(stopped > 20, "{stopped}");
}

/// Tokens are out when the guest moves, and its area is absent at the target: the area comes from the source, and then
/// the target wakes all tasks, once.
#[test]
fn tokens_that_are_out_become_one_wake_all_at_the_target() {
    let [mut here, mut there] = places();
    let store = Store::new(0, 1);
    here.swap = Some(Swap::with(&store, None));
    let from = here.boot(2, (40, 80));
    let (memory, page_of_area) = (from.vm.memory(), Ipa::new(address_of(0)));
    let away = [4, 8].map(|page| Ipa::new(address_of(page)));
    let mut source = Faults::new(Mode::Pv, 0);
    let mut host = source.host(memory);
    let at = page_of_area + 1024;
    memory.write(at, &[0; 64]).unwrap();
    assert_eq!(source.faults.call(&source.arrivals, &mut host, [ENABLE.into(), at.raw(), 0]), Some(0));
    for page in away {
        let _ = memory.write_out(page).unwrap();
        store.finish(memory);
        let fault = GuestFault { ipa: page, kind: FaultKind::Translation, access: AccessKind::Read };
        let next = source.faults.fault(&source.arrivals, &mut host, &AbsentPage::of(&fault), &context());
        assert_eq!(next, Next::Enter, "it is announced");
        // The guest consumes the announcement.
        memory.write(at + area::NOT_PRESENT as u64, &[0; 4]).unwrap();
    }
    assert_eq!(host.raised, 2);
    from.leaves.store(false, Ordering::Relaxed);
    let (snapshot, peer) = (source.faults.snapshot(), with_peer(&mut there));
    assert!(snapshot.wake_all, "tokens are out");
    let clock = Virtual::new(&from, 10, &[0, 0]);
    let all = Move::new(Tracker::Combined);
    let switched = switch(&all, Postcopy::AtOnce, &clock, &mut there, 1).unwrap().unwrap();
    let mut running = Running::new(switched, Arc::clone(&peer), Mode::Pv);
    running.vcpus[0].faults = VcpuFaults::restore(Mode::Pv, running.memory(), &snapshot).unwrap();
    let enter = |running: &mut Running<'_, '_>| {
        running.deliver();
        let (vcpu, memory) = (&mut running.vcpus[0], running.switched.guest.vm.memory());
        let mut host = VcpuHost { vcpu: 0, memory, raised: 0 };
        let next = vcpu.faults.before_entry(&vcpu.arrivals, &mut host);
        assert_eq!(next, Next::Enter);
        host.raised
    };
    assert_eq!(enter(&mut running), 0, "the area is absent");
    running.ask().unwrap();
    assert!(running.page(&from).unwrap());
    assert!(!peer_has(&peer, 0), "the area has come first");
    assert_eq!(enter(&mut running), 1);
    let mut token = [0; 4];
    running.memory().read(at + area::READY as u64, &mut token).unwrap();
    assert_eq!(u32::from_le_bytes(token), WAKE_ALL);
    assert_eq!(enter(&mut running), 0, "once");
    // The source's own requests end there.
    store.finish(memory);
    assert_eq!(memory.frame_use().arriving, 0);
}

/// Whether a page that the guest writes is absent.
fn peer_has(peer: &Peer<FastPlatform>, page: u64) -> bool {
    peer.absent_pages().contains(1, page)
}
