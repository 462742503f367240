// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The techniques that a bundle asks to replace by their baselines. Only an image with the feature `baselines` can.

#[cfg(feature = "baselines")]
pub use replaced::Baselines;
#[cfg(not(feature = "baselines"))]
pub use without::Baselines;

/// The bundle asks for baselines, and this image has none.
#[derive(Debug, thiserror::Error)]
#[error("the bundle asks for baselines ({0:#x}); use the image with the feature `baselines`")]
pub struct NoBaselines(u32);

#[cfg(not(feature = "baselines"))]
mod without {
    use twofold_memory::GuestMemory;
    use twofold_stage2::{Granule, Platform};

    use super::NoBaselines;

    /// No baselines.
    #[derive(Clone, Copy)]
    pub struct Baselines;

    impl Baselines {
        /// Reads the bits of a bundle's policies, which must be 0.
        pub fn read(bits: u32) -> Result<Self, NoBaselines> {
            if bits == 0 { Ok(Self) } else { Err(NoBaselines(bits)) }
        }

        /// Changes nothing.
        pub fn apply<P: Platform, G: Granule>(self, _: &mut GuestMemory<P, G>) {}

        /// Calls `each` with group, name and value of the counts that only baselines have.
        pub fn for_each_event<P: Platform, G: Granule>(_: &GuestMemory<P, G>, _: impl FnMut(&str, &str, u64)) {}
    }
}

#[cfg(feature = "baselines")]
mod replaced {
    use twofold_memory::GuestMemory;
    use twofold_memory::baselines::Policies;
    use twofold_stage2::{Granule, Platform};

    use super::NoBaselines;

    /// The techniques and baselines of a guest.
    #[derive(Clone, Copy)]
    pub struct Baselines(Policies);

    impl Baselines {
        /// Reads the bits of a bundle's policies. [`Config`](twofold_vmm::config::Config) has refused bits without a meaning.
        pub fn read(bits: u32) -> Result<Self, NoBaselines> {
            Policies::from_bits(bits).map(Self).ok_or(NoBaselines(bits))
        }

        /// Sets them for this memory.
        pub fn apply<P: Platform, G: Granule>(self, memory: &mut GuestMemory<P, G>) {
            memory.set_policies(self.0, crate::cpus::current);
        }

        /// Calls `each` with group, name and value of the counts that only baselines have.
        pub fn for_each_event<P: Platform, G: Granule>(
            memory: &GuestMemory<P, G>,
            mut each: impl FnMut(&str, &str, u64),
        ) {
            each("split", "visits", memory.split_visits());
        }
    }
}
