// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything that reads what comes from outside, each as a function of bytes that panics where a property does not hold.
//!
//! cargo-fuzz calls these functions with bytes that it makes up (`cargo xtask fuzz`); a test calls them with those that
//! are kept in `fuzz/corpus`, on the stable toolchain. Invariant: a target depends on its bytes alone, and bytes that say
//! nothing are no error.
//!
//! | target | reads |
//! |---|---|
//! | `syndrome` | `ESR_EL2`, `HPFAR_EL2`, `PAR_EL1` |
//! | `id_registers` | the CPU's features |
//! | `descriptor` | entries of tables in memory |
//! | `geometry` | sizes of address spaces, ranges |
//! | `engine` | operations on tables that make sense |
//! | `arguments` | operations on tables that need not |
//! | `guest_memory` | slots, loaders' writes, guests' faults |
//! | `device_tree`, `board` | the machine's device tree, as bytes and as changes of a good one |
//! | `bundle`, `guest_bundle` | the guest's bundle: any bytes, and any guest |
//! | `image` | a kernel's header |
//! | `console` | QEMU's version, the control channel, the guest's console |
//! | `trace` | a trace's lines |
//! | `size` | sizes on the command line |

mod any;
mod arguments;
mod bundle;
mod console;
mod descriptor;
mod device_tree;
mod engine;
mod geometry;
mod guest_memory;
mod id_registers;
mod image;
mod size;
mod syndrome;
mod trace;

/// The machines of the engine's and the memory's own tests.
#[path = "../../../crates/memory/tests/machine/mod.rs"]
mod machine;

pub use arguments::arguments;
pub use bundle::{bundle, guest_bundle};
pub use console::console;
pub use descriptor::descriptor;
pub use device_tree::{board, device_tree};
pub use engine::engine;
pub use geometry::geometry;
pub use guest_memory::guest_memory;
pub use id_registers::id_registers;
pub use image::image;
pub use size::size;
pub use syndrome::syndrome;
pub use trace::trace;

/// A target: its name, which is that of its corpus and of cargo-fuzz's program, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 15] = [
    ("arguments", arguments),
    ("board", board),
    ("bundle", bundle),
    ("console", console),
    ("descriptor", descriptor),
    ("device_tree", device_tree),
    ("engine", engine),
    ("geometry", geometry),
    ("guest_bundle", guest_bundle),
    ("guest_memory", guest_memory),
    ("id_registers", id_registers),
    ("image", image),
    ("size", size),
    ("syndrome", syndrome),
    ("trace", trace),
];
