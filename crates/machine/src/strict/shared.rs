// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state that a machine's CPUs share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::breach::Breach;
use super::model::Model;
use super::options::Options;
use crate::arena::Arena;

/// The state that its CPUs share.
pub(crate) struct Shared {
    pub(super) options: Options,
    pub(crate) arena: Arc<Arena>,
    pub(super) model: Mutex<Model>,
    pub(super) breach: Mutex<Option<Breach>>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
