// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of protocol steps. One build has all of them, and `TWOFOLD_MUTANT=FILE:LINE:COLUMN:KIND` selects one at run
//! time. With `TWOFOLD_REACHED=FILE` and no mutant, the mutants that are executed are written to the file.
//!
//! `#[track_caller]` gives the call site. `cargo xtask mutants` generates the list of all mutants from the source, so
//! it has each step that is added. The kinds:
//!
//! * `omit`: the step is not done; a check returns the result that lets its caller go on;
//! * `unlocked`: a lock is not taken, but the data behind it is used;
//! * `no-acquire`, `no-release`: the access has half of its ordering;
//! * `apart`: a read-modify-write is a load, and a store later;
//! * `local`: an invalidation or a barrier reaches this CPU only;
//! * `stores`: a barrier waits for stores only;
//! * `force`: a compare-and-exchange stores its new value whatever the old one is (as posted in Kolothum 2023);
//! * `leaf`: an invalidation that should remove walk entries keeps them;
//! * `shift`, `unshifted`, `other-space`: an invalidation's operand is shifted twice (Zephyr), not shifted (axvm), or
//!   names the other security state's address space (Hafnium);
//! * `vmid-only`: a VTTBR is restored without its table address (Bao).

extern crate std;

use core::cell::RefCell;
use core::panic::Location;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::string::String;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::vec::Vec;

use crate::instructions::{Domain, Tlbi};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Omit,
    Unlocked,
    NoAcquire,
    NoRelease,
    Apart,
    Local,
    Stores,
    Shift,
    Unshifted,
    OtherSpace,
    Leaf,
    Force,
    VmidOnly,
}

struct Mutant {
    file: String,
    line: u32,
    column: u32,
    kind: Kind,
}

const NAMES: [(&str, Kind); 13] = [
    ("omit", Kind::Omit),
    ("unlocked", Kind::Unlocked),
    ("no-acquire", Kind::NoAcquire),
    ("no-release", Kind::NoRelease),
    ("apart", Kind::Apart),
    ("local", Kind::Local),
    ("stores", Kind::Stores),
    ("shift", Kind::Shift),
    ("unshifted", Kind::Unshifted),
    ("other-space", Kind::OtherSpace),
    ("leaf", Kind::Leaf),
    ("force", Kind::Force),
    ("vmid-only", Kind::VmidOnly),
];

fn chosen() -> Option<&'static Mutant> {
    static CHOSEN: OnceLock<Option<Mutant>> = OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("TWOFOLD_MUTANT").ok().map(|text| parse(&text))).as_ref()
}

fn parse(text: &str) -> Mutant {
    let mut parts = text.rsplitn(4, ':');
    let mut next = || parts.next().unwrap_or_else(|| panic!("TWOFOLD_MUTANT={text}: want FILE:LINE:COLUMN:KIND"));
    let name = next();
    let kind = NAMES.into_iter().find(|(known, _)| *known == name);
    let (_, kind) = kind.unwrap_or_else(|| panic!("TWOFOLD_MUTANT={text}: no kind {name}"));
    let column = next().parse().unwrap_or_else(|error| panic!("TWOFOLD_MUTANT={text}: column: {error}"));
    let line = next().parse().unwrap_or_else(|error| panic!("TWOFOLD_MUTANT={text}: line: {error}"));
    Mutant { file: next().into(), line, column, kind }
}

/// Whether the selected mutant has this kind and this call site. Records that it was reached.
fn is(kind: Kind, site: &Location<'_>) -> bool {
    let Some(mutant) = chosen() else {
        record(kind, site);
        return false;
    };
    let here = mutant.line == site.line() && mutant.column == site.column() && site.file().ends_with(&mutant.file);
    if here && mutant.kind == kind {
        reached();
    }
    here && mutant.kind == kind
}

/// Without a selected mutant, writes each mutant that is executed to the file that `TWOFOLD_REACHED` names, once.
fn record(kind: Kind, site: &Location<'_>) {
    static FILE: OnceLock<Option<String>> = OnceLock::new();
    static SEEN: Mutex<BTreeSet<(Kind, String, u32, u32)>> = Mutex::new(BTreeSet::new());
    let Some(path) = FILE.get_or_init(|| std::env::var("TWOFOLD_REACHED").ok()) else { return };
    let (file, line, column) = (site.file(), site.line(), site.column());
    if SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, file.into(), line, column)) {
        let name = NAMES.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| name);
        let text = std::format!("{file}:{line}:{column}:{name} 0\n");
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the file of TWOFOLD_REACHED is writable");
    }
}

/// Prints once that the mutant was executed. It separates "not caught" from "not reached".
fn reached() {
    static SAID: OnceLock<()> = OnceLock::new();
    SAID.get_or_init(|| std::eprintln!("mutant reached"));
}

pub(crate) fn is_left_out(site: &Location<'_>) -> bool {
    is(Kind::Omit, site)
}

pub(super) fn is_apart(site: &Location<'_>) -> bool {
    is(Kind::Apart, site)
}

/// Waits between the load and the store of an `apart` mutant, long enough for another CPU to come between. On a real
/// machine nothing else makes that happen.
pub(super) fn later() {
    (0..50).for_each(|_| core::hint::spin_loop());
}

pub(super) fn ordering(order: Ordering, site: &Location<'_>) -> Ordering {
    match order {
        Ordering::Acquire if is(Kind::NoAcquire, site) => Ordering::Relaxed,
        Ordering::AcqRel if is(Kind::NoAcquire, site) => Ordering::Release,
        Ordering::Release if is(Kind::NoRelease, site) => Ordering::Relaxed,
        Ordering::AcqRel if is(Kind::NoRelease, site) => Ordering::Acquire,
        order => order,
    }
}

pub(super) fn barrier(domain: Domain, site: &Location<'_>) -> Domain {
    match domain {
        Domain::Ish if is(Kind::Stores, site) => Domain::IshSt,
        Domain::Nsh if is(Kind::Stores, site) => Domain::NshSt,
        Domain::Ish if is(Kind::Local, site) => Domain::Nsh,
        Domain::IshSt if is(Kind::Local, site) => Domain::NshSt,
        domain => domain,
    }
}

pub(super) fn invalidation(operation: Tlbi, operand: u64, site: &Location<'_>) -> (Tlbi, u64) {
    for (kind, operand) in
        [(Kind::Shift, operand >> 12), (Kind::Unshifted, operand << 12), (Kind::OtherSpace, operand ^ 1 << 63)]
    {
        if is(kind, site) {
            return (operation, operand);
        }
    }
    let leaf = match operation {
        Tlbi::Ipas2E1Is => Tlbi::Ipas2Le1Is,
        Tlbi::Ripas2E1Is => Tlbi::Ripas2Le1Is,
        operation => operation,
    };
    if leaf != operation && is(Kind::Leaf, site) {
        return (leaf, operand);
    }
    let local = match operation {
        Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => Tlbi::Ipas2E1,
        Tlbi::VmallE1Is => Tlbi::VmallE1,
        operation => operation,
    };
    (if local != operation && is(Kind::Local, site) { local } else { operation }, operand)
}

pub(super) fn is_forced(site: &Location<'_>) -> bool {
    is(Kind::Force, site)
}

pub(super) fn vttbr(value: u64, site: &Location<'_>) -> u64 {
    if is(Kind::VmidOnly, site) { value & 0xffff << 48 } else { value }
}

#[cfg(loom)]
use loom::thread_local;
#[cfg(not(loom))]
use std::thread_local;

thread_local! {
    /// The addresses of the locks that this thread pretends to hold.
    static NOT_HELD: RefCell<Vec<usize>> = RefCell::new(Vec::new());
}

pub(super) fn leaves_lock_out<T>(word: &T, site: &Location<'_>) -> bool {
    let left_out = is(Kind::Unlocked, site);
    if left_out {
        NOT_HELD.with(|locks| locks.borrow_mut().push(core::ptr::from_ref(word).addr()));
    }
    left_out
}

pub(super) fn left_lock_out<T>(word: &T) -> bool {
    let address = core::ptr::from_ref(word).addr();
    NOT_HELD.with(|locks| {
        let mut locks = locks.borrow_mut();
        let at = locks.iter().rposition(|lock| *lock == address);
        at.map(|at| locks.swap_remove(at)).is_some()
    })
}
