// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `features`: tries one instruction or more of each feature that a guest may find.
//!
//! A hidden feature must be UNDEFINED, or on the list of those that no trap concerns (`docs/guest-cpu.md`). A feature
//! that the ID registers announce must work. The list of instructions is in [`table`].

mod table;
pub mod trial;

use table::{ANNOUNCED, HIDDEN, UNTRAPPED, ZERO};
use trial::{execute, read};

use crate::uart::println;

/// Why the program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{count} instructions did not do what the ID registers promise")]
    Wrong { count: u64 },
    #[error("only {0} announced features were tried")]
    Few(u64),
}

/// Runs the program.
pub fn run() -> Result<(), Failure> {
    let (mut wrong, mut announced) = (0, 0);
    let mut check = |is_right: bool, what: &str, name: &str| {
        if !is_right {
            println!("features: {name} {what}");
            wrong += 1;
        }
    };
    for (name, instruction) in HIDDEN {
        check(execute(*instruction, 0).is_undefined(), "is hidden, but not UNDEFINED", name);
    }
    for (name, instruction) in ZERO {
        let tried = execute(*instruction, !0);
        check(tried.is_executed() && tried.x0 == 0, "does not read as zero", name);
    }
    for (name, instruction, kept) in UNTRAPPED {
        let tried = execute(*instruction, VALUE);
        let is_right = tried.is_undefined() || tried.is_executed() && (!kept || tried.x0 == VALUE);
        check(is_right, "reaches what is not the guest's", name);
    }
    for (name, [crm, op2, low], first, instruction) in ANNOUNCED {
        let field = execute(read([3, 0, 0, *crm, *op2]), 0).x0 >> low & 0xf;
        // FP and AdvSIMD are signed: 15 is none.
        if field >= *first && field != 15 {
            announced += 1;
            check(execute(*instruction, 0).is_executed(), "is announced, but does not work", name);
        }
    }
    println!(
        "features: {} hidden, {} as zero, {} without a trap, {announced} announced of {}; {wrong} wrong",
        HIDDEN.len(),
        ZERO.len(),
        UNTRAPPED.len(),
        ANNOUNCED.len()
    );
    match wrong {
        0 if announced < LEAST => Err(Failure::Few(announced)),
        0 => Ok(()),
        count => Err(Failure::Wrong { count }),
    }
}

/// A value without a tag in bits 59 to 56.
const VALUE: u64 = 0x4000_0000;
/// FP, SIMD and the GIC's registers, which every CPU has that runs a guest.
const LEAST: u64 = 3;
