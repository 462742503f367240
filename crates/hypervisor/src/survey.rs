// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the features of each CPU that will run a vCPU, before anything depends on them.
//!
//! A CPU is started, reports its ID registers, and goes off again; a vCPU starts it later. The boot CPU waits for each
//! one.

use spin::Once;
use twofold_abi::virt;
use twofold_stage2::{Features, IdRegisters};
use twofold_vmm::agreement::{self, Unfit};
use twofold_vmm::mitigation::Needs;

use crate::board::Board;
use crate::cpus::{self, StartError};
use crate::guest_cpu::{GuestCpu, IdValues};
use crate::{mitigation, platform, power, read_sysreg};

/// Why the CPUs cannot be used together.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum SurveyError {
    /// A CPU cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A CPU is not fit.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// The features that the first `cpus` CPUs have in common, the ID registers that a guest of theirs sees, and the
/// mitigations that they need together. Must be called on CPU 0, before any other CPU runs.
pub fn common_features(board: &Board, cpus: usize) -> Result<(Features, GuestCpu, Needs), SurveyError> {
    for index in 1..cpus {
        cpus::start(board, index, |index| {
            REPORTS[index].call_once(|| (platform::id_registers(), IdValues::read(), mitigation::of_this_cpu()));
        })?;
    }
    let ram_end = board.ram.iter().map(|ram| ram.end).max().unwrap_or(0);
    let mut guest_cpu = GuestCpu::new(&IdValues::read());
    let mut needs = mitigation::of_this_cpu();
    let others = (1..cpus).map(|index| {
        let (registers, ids, needed) = wait(board.cpus[index], &REPORTS[index])?;
        guest_cpu = guest_cpu.and(&ids);
        needs = needs.and(&needed);
        Some(registers)
    });
    let features = agreement::agree(platform::features(), others, ram_end)?;
    Ok((features, guest_cpu, needs))
}

/// The registers that the engine and the guest's ID registers depend on, as one CPU reported them, and what its firmware
/// reports for it.
type Report = (IdRegisters, IdValues, Needs);

/// What each CPU reported.
static REPORTS: [Once<Report>; virt::MAX_CPUS as usize] = [const { Once::new() }; virt::MAX_CPUS as usize];

/// The report of a CPU, after it has gone off again; `None` if that takes unreasonably long.
fn wait(mpidr: u64, report: &Once<Report>) -> Option<Report> {
    const SECONDS: u64 = 20;
    let start = read_sysreg!(CNTPCT_EL0);
    let limit = SECONDS * read_sysreg!(CNTFRQ_EL0);
    loop {
        if let Some(registers) = report.get()
            && power::affinity_info(mpidr) == Ok(smccc::psci::AffinityState::Off)
        {
            return Some(*registers);
        }
        if read_sysreg!(CNTPCT_EL0).wrapping_sub(start) > limit {
            return None;
        }
        core::hint::spin_loop();
    }
}
