// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies of an image with the feature `baselines`: translates the bits of a bundle for the memory.

use twofold_abi::bundle::before;
use twofold_memory::baselines::{Clean, Coalesce, Policies, Split, TablePages};

/// The policies that these bits of [`before`] select.
pub fn policies(bits: u32) -> Policies {
    let is = |bit| bits & bit != 0;
    Policies {
        split: match bits & before::SPLIT {
            before::SPLIT_EVERY_LEVEL => Split::EveryLevel,
            before::SPLIT_SKIP_CHILDREN => Split::SkipChildren,
            before::SPLIT_SKIP_LEAVES => Split::SkipLeaves,
            _ => Split::Records,
        },
        clean: if is(before::CLEAN_ON_ABORT) { Clean::OnAbort } else { Clean::OnMap },
        coalesce: if is(before::COALESCE_FREE_FIRST) { Coalesce::FreeFirst } else { Coalesce::InstallFirst },
        tables: if is(before::TABLES_ALWAYS) { TablePages::Always } else { TablePages::WhenNeeded },
    }
}
