// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's platform in this image: counted, and in images with the feature `trace` also traced.

use twofold_stage2::Features;

#[cfg(feature = "trace")]
use super::trace::platform::Traced;
use crate::platform::Counted;

/// The engine's platform.
#[cfg(not(feature = "trace"))]
pub type EnginePlatform = Counted;
/// The engine's platform.
#[cfg(feature = "trace")]
pub type EnginePlatform = Traced<Counted>;

/// Makes the engine's platform, of CPUs that share these features.
pub fn observed(counted: Counted, _features: &Features) -> EnginePlatform {
    #[cfg(feature = "trace")]
    let counted = Traced::new(counted, _features);
    counted
}
