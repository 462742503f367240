// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of documentation, without code: the files of the crate's directory `docs`.

// The guide's blocks are one program, which `tests/embedding.rs` compiles and runs; each alone would not compile.
#[cfg_attr(not(doctest), doc = include_str!("../docs/embedding.md"))]
#[allow(rustdoc::invalid_rust_codeblocks, reason = "a block may end in the middle of an item")]
pub mod embedding {}

#[doc = include_str!("../docs/locking.md")]
pub mod locking {}

#[doc = include_str!("../docs/sequences.md")]
pub mod sequences {}

#[doc = include_str!("../docs/smmu.md")]
pub mod smmu {}
