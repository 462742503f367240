// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The image: takes the machine over, and runs the guest in the boot loader's bundle.
#![no_std]
#![no_main]

use twofold_hypervisor::board::Board;
use twofold_hypervisor::experiment::{ExitObserver, Observer};
use twofold_hypervisor::{memory, start};

twofold_hypervisor::entry!(main);

fn main(board: &'static Board) -> ! {
    let taken = memory::take_over(board, Observer::RAM_PER_HEAP);
    start::run(board, memory::bundle(board), taken)
}
