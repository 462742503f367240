// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judges a stage: what it must leave in tables and memory.

use anyhow::ensure;

use crate::experiment::target::Inspect;

/// What a stage must leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The stage's name.
    pub stage: &'static str,
    /// Bytes of the memory.
    pub bytes: u64,
    /// Bytes from one place that is looked at to the next.
    pub step: u64,
    /// Bytes that each leaf there maps.
    pub leaf: u64,
    /// The word there.
    pub value: u64,
}

impl End {
    /// Checks the guest's tables and memory.
    ///
    /// # Errors
    ///
    /// The first place that is wrong.
    pub fn check(&self, inside: &dyn Inspect) -> anyhow::Result<()> {
        let Self { stage, bytes, step, leaf, value } = *self;
        for offset in (0..bytes).step_by(step as usize) {
            let found = inside.leaf(offset);
            ensure!(
                found == Some(leaf),
                "after `{stage}` byte {offset:#x} of the guest's memory must be mapped by a leaf of {leaf} bytes, and {}",
                found.map_or("is not mapped".to_owned(), |found| format!("is mapped by {found}"))
            );
            let word = inside.word(offset);
            ensure!(
                word == Some(value),
                "after `{stage}` byte {offset:#x} of the guest's memory has {word:?} in place of {value}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every leaf has this size, and every word this value.
    struct Seen(Option<u64>, u64);

    impl Inspect for Seen {
        fn leaf(&self, _: u64) -> Option<u64> {
            self.0
        }

        fn word(&self, _: u64) -> Option<u64> {
            Some(self.1)
        }

        fn unmap(&self, _: u64) -> anyhow::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn memory_that_is_not_as_it_should_be_is_found() {
        let (page, huge) = (4 << 10, 2 << 20);
        let end = End { stage: "adjust", bytes: 2 * huge, step: huge, leaf: huge, value: 2 };
        assert!(end.check(&Seen(Some(huge), 2)).is_ok());
        assert!(end.check(&Seen(Some(page), 2)).is_err());
        assert!(end.check(&Seen(None, 2)).is_err());
        assert!(end.check(&Seen(Some(huge), 1)).is_err());
    }
}
