// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer, which is the store whose pages are at the source, without a guest that runs: pages come, are asked for, and
//! links are cut, in each order.

use std::sync::{Arc, Mutex};

use twofold_machine::fast::FastPlatform;
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Completions, Located, PageStore, Place as At, ReadRequest, Waiter, WriteOutError, WriteRequest,
};
use twofold_migration::PageSet;
use twofold_migration::postcopy::{Came, Peer, TargetState, is_at_peer, place_of};
use twofold_migration::ram::RamError;
use twofold_migration::stream::{Compression, Writer};
use twofold_stage2::Ipa;

use crate::guest::{Guest, PAGE, Swap, address_of, capabilities, hello, places, slots};
use crate::postcopied::taken;
use crate::store::Reports;

/// A store that passes requests to read on when the test says so.
struct Held {
    peer: Arc<Peer<FastPlatform>>,
    requests: Mutex<Vec<ReadRequest>>,
}

impl PageStore for Held {
    fn place(&self, page: Ipa) -> Option<At> {
        self.peer.place(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.peer.write(memory, request);
    }

    fn read(&self, _: &dyn Completions, request: ReadRequest) {
        self.requests.lock().unwrap().push(request);
    }

    fn discard(&self, place: At) {
        self.peer.discard(place);
    }

    fn keeps_what_is_read(&self, place: twofold_memory::swap::Place) -> bool {
        self.peer.keeps_what_is_read(place)
    }
}

/// A target's memory without a guest, in which the first pages that the guest writes are absent.
fn target() -> (Guest, Arc<Held>) {
    let [_, mut there] = places();
    let peer = Arc::new(Peer::new(FastPlatform(Arc::clone(&there.machine)), &slots(), Box::new(|| ())));
    let held = Arc::new(Held { peer, requests: Mutex::default() });
    let attached = Arc::clone(&held);
    let store = Box::new(move || -> Box<dyn PageStore> { Box::new(Arc::clone(&attached)) });
    there.swap = Some(Swap { store, reports: Arc::<Reports>::default(), own: None, limit: None });
    let guest = there.make(&slots()).unwrap();
    let mut absent = PageSet::none(&slots());
    (0..4).for_each(|page| assert!(absent.insert(1, page)));
    held.peer.absent(guest.vm.memory(), &absent).unwrap();
    (guest, held)
}

fn came(bytes: &[u8]) -> Came<'_> {
    Came { slot: 1, page: 2, count: 1, bytes: Some(bytes) }
}

fn third() -> Ipa {
    Ipa::new(address_of(2))
}

/// D4: the page comes between the memory's decision to ask and its request.
#[test]
fn a_page_that_comes_just_before_its_request_is_not_lost() {
    let (guest, held) = target();
    let memory = guest.vm.memory();
    memory.bring(third(), Waiter::Other(1)).unwrap();
    assert_eq!(memory.locate(third()), Ok(Located::Arriving(place_of(third()))));
    held.peer.came(memory, &came(&[7; 4096])).unwrap();
    assert_eq!(held.peer.state(), TargetState::Fetching { absent: 4 });
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(memory, request);
    assert_eq!(guest.reports.take(), [(Waiter::Other(1), Arrival::Present)]);
    assert_eq!(held.peer.state(), TargetState::Fetching { absent: 3 });
    let mut bytes = [0; 4096];
    memory.read(third(), &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    let mut nothing = Writer::with_absent(Vec::new(), Compression::Off);
    assert_eq!(held.peer.ask(&mut nothing), Ok(0), "the source is not asked");
    // It comes again, and changes nothing.
    memory.write(third(), &[1]).unwrap();
    held.peer.came(memory, &came(&[9; 4096])).unwrap();
    memory.read(third(), &mut bytes[..2]).unwrap();
    assert_eq!(bytes[..2], [1, 7]);
}

#[test]
fn a_page_that_is_asked_for_is_counted() {
    let (guest, held) = target();
    guest.vm.memory().bring(third(), Waiter::Other(1)).unwrap();
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(guest.vm.memory(), request);
    let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
    assert_eq!(held.peer.ask(&mut answers), Ok(1));
    assert_eq!(held.peer.ask(&mut answers), Ok(0));
    held.peer.came(guest.vm.memory(), &came(&[7; 4096])).unwrap();
}

/// The last page comes in that moment: no page follows on the link, and the page is stored by the CPU that asks.
#[test]
fn the_last_page_that_comes_just_before_its_request_is_known_to_have_come() {
    let (guest, held) = target();
    let memory = guest.vm.memory();
    memory.bring(third(), Waiter::Other(1)).unwrap();
    for page in [0, 1, 3] {
        held.peer.came(memory, &Came { page, ..came(&[5; 4096]) }).unwrap();
        assert!(!held.peer.has_all());
    }
    held.peer.came(memory, &came(&[7; 4096])).unwrap();
    assert_eq!((held.peer.state(), held.peer.has_all()), (TargetState::Fetching { absent: 1 }, true));
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(memory, request);
    assert_eq!((held.peer.state(), held.peer.has_all()), (TargetState::Complete, true));
}

/// The link is cut in that moment: what came is kept for the request, and comes no second time.
#[test]
fn a_link_that_is_cut_then_loses_nothing() {
    let (guest, held) = target();
    let memory = guest.vm.memory();
    memory.bring(third(), Waiter::Other(1)).unwrap();
    held.peer.came(memory, &came(&[7; 4096])).unwrap();
    held.peer.cut(memory, "reset");
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(memory, request);
    assert_eq!(guest.reports.take(), [(Waiter::Other(1), Arrival::Present)]);
    // Another is asked for while the link is cut.
    memory.bring(Ipa::new(address_of(3)), Waiter::Other(2)).unwrap();
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(memory, request);
    assert_eq!(guest.reports.take(), [(Waiter::Other(2), Arrival::Failed)]);
    let state = held.peer.state().to_string();
    assert_eq!(state, "the link to the source is cut (reset): 3 pages are absent, and vCPUs wait for 1 of them");
    assert_eq!(memory.frame_use().arriving, 0);
}

/// The peer is no place to write to, and what came from it has no copy there.
#[test]
fn nothing_leaves_to_the_source() {
    let (guest, held) = target();
    let memory = guest.vm.memory();
    held.peer.came(memory, &came(&[7; 4096])).unwrap();
    assert_eq!(memory.write_out(third()), Err(WriteOutError::StoreFull { page: third() }));
    assert_eq!(memory.locate(third()), Ok(Located::Present));
    let wrong = Came { slot: 1, page: 300, count: 1, bytes: None };
    assert_eq!(held.peer.came(memory, &wrong), Err(RamError::NoPage { slot: 1, page: 300 }));
    // A page that the memory thinks is absent, and the peer does not have.
    memory.make_absent(Ipa::new(address_of(9)), At::new(1)).unwrap();
    memory.bring(Ipa::new(address_of(9)), Waiter::Other(2)).unwrap();
    let request = held.requests.lock().unwrap().pop().unwrap();
    held.peer.read(memory, request);
    assert_eq!(guest.reports.take(), [(Waiter::Other(2), Arrival::Failed)]);
}

#[test]
fn a_place_at_a_peer_is_known() {
    let place = place_of(third());
    assert_eq!(place, At::new((1 << 63) + third().raw() / PAGE));
    assert!(is_at_peer(place) && !is_at_peer(At::new(5)));
}

#[test]
fn a_page_that_is_made_absent_alone_counts_once() {
    let (guest, held) = target();
    let (peer, memory) = (&held.peer, guest.vm.memory());
    peer.absent_page((1, 9), |ipa, place| memory.make_absent(ipa, place)).unwrap();
    assert_eq!(peer.asks(), (false, 5));
    peer.absent_page((1, 9), |_, _| Ok(())).unwrap();
    assert_eq!(peer.asks(), (false, 5), "it is absent already");
    let refused = peer.absent_page((1, 300), |_, _| panic!("there is no such page"));
    assert_eq!(refused, Err(RamError::NoPage { slot: 1, page: 300 }));
}

/// A link's bytes. Before the first of them, a vCPU needs pages.
struct Meanwhile<'a> {
    bytes: &'a [u8],
    needs: Option<&'a dyn Fn()>,
}

impl embedded_io::ErrorType for Meanwhile<'_> {
    type Error = core::convert::Infallible;
}

impl embedded_io::Read for Meanwhile<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Self::Error> {
        self.needs.take().into_iter().for_each(|needs| needs());
        self.bytes.read(bytes)
    }
}

#[test]
fn what_is_needed_while_a_link_comes_back_is_asked_for_once() {
    let (guest, held) = target();
    let (peer, memory) = (&held.peer, guest.vm.memory());
    let first = Ipa::new(slots()[0].first * PAGE);
    for page in 0..2 {
        peer.absent_page((0, page), |ipa, place| memory.make_absent(ipa, place)).unwrap();
    }
    let need = |page: Ipa| {
        memory.bring(page, Waiter::Other(1)).unwrap();
        let request = held.requests.lock().unwrap().pop().unwrap();
        peer.read(memory, request);
    };
    need(third());
    let asks = peer.asks();
    peer.cut(memory, "reset");
    assert_eq!(asks, (true, 6));
    let mut link = Writer::with_absent(Vec::new(), Compression::Off);
    link.hello(&hello(2)).unwrap();
    link.slots(&slots()).unwrap();
    link.resume(taken()).unwrap();
    let bytes = link.into_sink();
    let needs = || (0..2).for_each(|page| need(first + page * PAGE));
    let link = Meanwhile { bytes: &bytes, needs: Some(&needs) };
    let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
    peer.resume(link, capabilities(), &hello(2), taken(), &mut answers).map(|_| ()).unwrap();
    let questions = [(); 3].map(|()| peer.next_question());
    need(third());
    let again = peer.next_question();
    peer.cut(memory, "the test ends");
    // The resumption has asked for the other page.
    assert_eq!((questions, again), ([Some((0, 0)), Some((0, 1)), None], None));
}
