// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As module `reused`, for the entries of a contiguous group, which are stored one by one after a fence.

use std::sync::Arc;

use super::groups::{Operation, map_group_at, tables};
use super::guest::{BLOCK, FWB, RAM, READ, home};
use super::model;
use super::resized::LIVE;
use crate::withdraw::Sample;
use crate::{Access, Coalesced, Ipa, Level};

/// A block replaces the table of the first page, and the table's page is reused for the group in the upper half. Then
/// another CPU does `change` there. A late walk for the first page, which is always mapped, takes no entry of that group.
fn is_not_seen(change: Operation) {
    for features in [FWB, LIVE] {
        model(2, move || {
            let (stage2, [mut own, mut others]) = tables(features);
            let stage2 = Arc::new(stage2);
            let there = stage2.clone();
            let reuse = loom::thread::spawn(move || {
                let to = (Ipa::new(0), home(Ipa::new(0)));
                let block =
                    there.coalesce_to::<false, false>(to, Sample::NONE, Level::L2, &READ, &mut own, &mut |_| ());
                assert!(matches!(block, Ok(Coalesced::Done { tables: 1 })), "{block:?}");
                map_group_at(&there, BLOCK, &READ, &mut own);
                let then = loom::thread::spawn(move || change(&there, &mut others));
                then.join().expect("no panic");
            });
            let leaf = stage2.look_up(Ipa::new(0)).expect("the first page is mapped all the time");
            assert_eq!(leaf.descriptor.address(), home(Ipa::new(0)), "{leaf:?}");
            reuse.join().expect("no panic");
        });
    }
}

#[test]
fn what_changes_a_group_is_not_seen_late() {
    is_not_seen(|stage2, _| {
        let _ = stage2.relax_page(Ipa::new(BLOCK), Access::READ_WRITE);
    });
    is_not_seen(|stage2, _| {
        let _ = stage2.relax(Ipa::new(BLOCK), Access::READ_WRITE);
    });
    is_not_seen(|stage2, _| {
        let _ = stage2.relax(Ipa::new(BLOCK), Access::ALL);
    });
    is_not_seen(|stage2, pages| map_group_at(stage2, BLOCK, &RAM, pages));
}
