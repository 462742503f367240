// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs with their own pools in front of one source: each page is in exactly one place.

use std::sync::Arc;

use loom::sync::Mutex;

use super::guest::{BLOCK, Guest, PAGE};
use super::machine::Pages;
use super::model;
use crate::{Level, Pool, TablePage, TableSource};

/// The shared source, behind a lock.
struct Shared<'a>(&'a Mutex<Pages>);

impl TableSource for Shared<'_> {
    fn take(&mut self) -> Option<TablePage> {
        self.0.lock().expect("no panic").take()
    }

    fn give(&mut self, page: TablePage) {
        self.0.lock().expect("no panic").give(page);
    }
}

fn work(guest: &Guest, source: &Mutex<Pages>, at: u64) {
    let mut pool: Pool<_, 1> = Pool::new(Shared(source));
    pool.top_up(1);
    guest.map(at, Level::L3, &mut pool);
    guest.unmap_quietly(0, BLOCK, &mut pool);
    guest.map(BLOCK + at, Level::L3, &mut pool);
}

#[test]
fn pages_go_round() {
    model(1, || {
        let guest = Arc::new(Guest::new(2, 4));
        let source = Arc::new(Mutex::new(guest.pages(0..4)));
        let (there, theirs) = (guest.clone(), source.clone());
        let other = loom::thread::spawn(move || work(&there, &theirs, PAGE));
        work(&guest, &source, 0);
        other.join().expect("no panic");
        let Some(source) = Arc::into_inner(source) else { panic!("a thread still has the source") };
        let mapped = guest.check(&[source.into_inner().expect("no panic")]);
        assert!(mapped.contains_key(&BLOCK) && mapped.contains_key(&(BLOCK + PAGE)));
    });
}
