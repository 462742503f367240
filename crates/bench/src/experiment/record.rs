// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Adds the costs that an experiment measured to its results.
//!
//! Invariant: runs are in the order in which they were done. A caller that adds the same phases in each run, for
//! variants that take turns, has the runs of one round at the same index.

use std::collections::{BTreeMap, BTreeSet};

use twofold_workload::policies::Policies;

use super::setup::Setup;
use super::target::Taken;
use crate::results::{Kind, Measurement, Platform, Quantity, Results};

/// One variant of an experiment, as named in results.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The experiment.
    pub experiment: &'static str,
    /// The platform.
    pub platform: Platform,
    /// The settings.
    pub configuration: BTreeMap<String, String>,
    /// Whether the guest's costs include a stated price.
    modelled: bool,
    /// Whether the guest makes exactly the same accesses in each run.
    steady: bool,
}

/// The side that does the work in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The guest, alone or with the collector.
    Guest,
    /// The collector only.
    Collector,
}

impl Variant {
    /// The variant of this setup.
    pub fn new(experiment: &'static str, platform: Platform, setup: &Setup) -> Self {
        let (modelled, steady) = (setup.exit_cost > 0, setup.vcpus == 1 && platform != Platform::Kvm);
        let mut configuration = setup.configuration();
        if platform == Platform::Kvm {
            // Policies are Twofold's. KVM does what its kernel does.
            configuration.retain(|key, _| !Policies::KEYS.contains(&key.as_str()));
        }
        Self { experiment, platform, configuration, modelled, steady }
    }

    /// The same variant, with a setting that is not part of the setup.
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.configuration.insert(key.to_owned(), value.to_string());
        self
    }

    /// The same variant, for a guest whose accesses in a run depend on time.
    pub fn unsteady(self) -> Self {
        Self { steady: false, ..self }
    }

    /// Adds the costs of one phase in one run.
    pub fn add(&self, results: &mut Results, phase: &str, party: Party, taken: &Taken) {
        for (quantity, value) in taken {
            self.measurement(results, phase, *quantity, self.kind(*quantity, party)).runs.push(*value);
        }
    }

    /// How a figure was obtained. Several vCPUs that fault in the same table may take one fault more or less.
    fn kind(&self, quantity: Quantity, party: Party) -> Kind {
        match quantity {
            Quantity::Time | Quantity::CpuTime | Quantity::Rate if self.modelled && party == Party::Guest => {
                Kind::Modelled
            }
            Quantity::Time | Quantity::CpuTime | Quantity::Rate => Kind::Native,
            _ if self.steady => Kind::Counted,
            _ => Kind::Native,
        }
    }

    fn measurement<'r>(
        &self,
        results: &'r mut Results,
        phase: &str,
        quantity: Quantity,
        kind: Kind,
    ) -> &'r mut Measurement {
        let new = Measurement {
            experiment: self.experiment.to_owned(),
            platform: self.platform,
            configuration: self.configuration.clone(),
            phase: phase.to_owned(),
            quantity,
            kind,
            runs: Vec::new(),
        };
        results.measurement(new)
    }
}

/// Leaves out figures that are 0 in every variant, such as kinds of faults that did not happen. A variant keeps a 0 if
/// another variant has a value.
pub fn leave_out_zeroes(results: &mut Results) {
    let name =
        |one: &Measurement| (one.experiment.clone(), one.platform.name(), one.phase.clone(), one.quantity.name());
    let some = results.measurements.iter().filter(|one| one.runs.iter().any(|run| *run != 0.0));
    let some: BTreeSet<_> = some.map(name).collect();
    results.measurements.retain(|one| some.contains(&name(one)));
}

/// The sum of several costs.
pub fn sum<'t>(all: impl IntoIterator<Item = &'t Taken>) -> Taken {
    let mut sum = Taken::new();
    for (quantity, value) in all.into_iter().flatten() {
        *sum.entry(*quantity).or_default() += value;
    }
    sum
}

/// The mean of several costs.
pub fn mean<'t>(all: impl IntoIterator<Item = &'t Taken, IntoIter: ExactSizeIterator>) -> Taken {
    let all = all.into_iter();
    let count = all.len() as f64;
    sum(all).into_iter().map(|(quantity, sum)| (quantity, sum / count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_workload::mode::Mode;

    #[test]
    fn runs_of_the_same_are_one_measurement() {
        let setup = Setup::new(Mode::find("p40v48-4k").unwrap());
        let (here, there) = (
            Variant::new("x", Platform::Machine, &setup),
            Variant::new("x", Platform::Machine, &Setup { exit_cost: 9, ..setup.clone() }),
        );
        let mut results = Results::begin();
        for value in [1.0, 2.0] {
            here.add(&mut results, "dirty", Party::Guest, &Taken::from([(Quantity::Time, value)]));
            there.add(
                &mut results,
                "dirty",
                Party::Guest,
                &Taken::from([(Quantity::Time, 3.0), (Quantity::Faults, 4.0)]),
            );
        }
        there.add(&mut results, "get", Party::Collector, &Taken::from([(Quantity::Time, 5.0)]));
        let found: Vec<_> = results.measurements.iter().map(|one| (one.quantity, one.kind, one.runs.len())).collect();
        let expected = [
            (Quantity::Time, Kind::Native, 2),
            (Quantity::Time, Kind::Modelled, 2),
            (Quantity::Faults, Kind::Counted, 2),
            (Quantity::Time, Kind::Native, 1),
        ];
        assert_eq!(found, expected);
        there.add(&mut results, "get", Party::Collector, &Taken::from([(Quantity::Tables, 0.0)]));
        leave_out_zeroes(&mut results);
        assert_eq!(results.measurements.len(), expected.len());
        // Another variant has faults, so a variant without faults keeps its 0.
        here.add(&mut results, "dirty", Party::Guest, &Taken::from([(Quantity::Faults, 0.0)]));
        leave_out_zeroes(&mut results);
        assert_eq!(results.measurements.len(), expected.len() + 1);
    }

    #[test]
    fn sums_and_means() {
        let (one, two) = (Taken::from([(Quantity::Time, 1.0)]), Taken::from([(Quantity::Time, 3.0)]));
        assert_eq!(sum([&one, &two])[&Quantity::Time], 4.0);
        assert_eq!(mean([&one, &two])[&Quantity::Time], 2.0);
    }
}
