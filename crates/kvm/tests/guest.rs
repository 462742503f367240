// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of the library, one test each. If this host's KVM cannot be used, each is ignored with the reason.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use twofold_kvm::check::{self, Outcome};

fn main() {
    let arguments = Arguments::from_args();
    let trials = check::all().into_iter().map(|check| {
        Trial::ignorable_test(check.name.clone(), move || match check.run() {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Skipped(why) => Ok(Completion::ignored_with(why)),
            Outcome::Failed(how) => Err(Failed::from(how)),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
