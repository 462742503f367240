// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vector registers, which are switched only for a vCPU that uses them.
//!
//! EL2 itself has no use of them: the image is compiled for a target without FP.

use crate::primitive::{Step, kept};
use crate::{load_vector, store_vector};

/// V0 to V31.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Vectors(pub [u128; 32]);

macro_rules! vectors {
    ($($n:literal),+) => {
        /// The registers' names.
        pub const NAMES: [&str; 32] = [$(concat!("V", $n)),+];

        /// Saves the vector registers. FP and SIMD must not trap at EL2.
        #[inline(always)]
        pub(super) fn save(vectors: &mut Vectors) {
            let base = vectors.0.as_mut_ptr();
            $(if kept(Step::Save, concat!("V", $n)) {
                // SAFETY: stores to element `n` of the array, of 32.
                unsafe { store_vector!($n, base) };
            })+
        }

        /// Restores the vector registers. FP and SIMD must not trap at EL2.
        #[inline(always)]
        pub(super) fn restore(vectors: &Vectors) {
            let base = vectors.0.as_ptr();
            $(if kept(Step::Restore, concat!("V", $n)) {
                // SAFETY: loads element `n` of the array, of 32. EL2 holds nothing in vector registers.
                unsafe { load_vector!($n, base) };
            })+
        }
    };
}

vectors!(
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
    31
);
