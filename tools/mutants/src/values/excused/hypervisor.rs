// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/hypervisor`.

use super::{PAUSE, SAME_VALUE};
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/hypervisor/src/context.rs",
        mutants: &[("Context::new: 0 => 1 #3", "the switch writes both words before it reads them")],
    },
    Excused {
        file: "crates/hypervisor/src/cpus.rs",
        mutants: &[("Memory::zero: 0 => 1", "no code reads a word of a stack before it writes it")],
    },
    Excused {
        file: "crates/hypervisor/src/inject.rs",
        mutants: &[
            ("inject::external_abort: 0x3f => 0x3e", "the exception classes of aborts from a lower level are even"),
            ("take::STACK_OF_EL1: 1 => a bit more", "PSTATE.M[1] is 0 at EL1"),
            ("inject::AARCH32: 1 << 4 => a bit more", "bit 5 is 0 whenever bit 4 is 0"),
            ("pstate_in_handler::DIT: 1 << 24 => a bit more", "bit 25 is TCO, which is always set"),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/masked.rs",
        mutants: &[("Looks::none: 0 => 1", FIRST_LOOK), ("Looks::none: 0 => 1 #2", FIRST_LOOK)],
    },
    Excused {
        file: "crates/hypervisor/src/mmio.rs",
        mutants: &[
            ("from_syndrome::STAGE_1_WALK: 1 << 7 => a bit more", "bit 8 is MAINTENANCE, which is in the same mask"),
            (
                "from_syndrome::WRITE: 1 << 6 => a bit more",
                "bit 7 is STAGE_1_WALK, which is clear in each access that is decoded",
            ),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/registers/el2.rs",
        mutants: &[
            ("mdcr::TPMCR: 1 << 5 => a bit more", "bit 6 is TPM, which is set with it"),
            ("hcrx::TCR2EN: 1 << 14 => a bit more", "bit 15 is SCTLR2EN, which is always set"),
            ("mpam2::TRAP_MPAM1: 1 << 48 => a bit more", "bit 49 is TRAP_MPAM0, which is always set"),
            ("el2::mdcr: 0x1f => 0x3f", "bit 5 is TPMCR, which is set with it"),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/registers/mod.rs",
        mutants: &[
            ("registers::hcr: 0 => 1", "bit 0 is VM, which is always set"),
            ("hcr::VM: 1 << 0 => a bit more", "bit 1 is SWIO, which is always set"),
            ("hcr::TID3: 1 << 18 => a bit more", "bit 19 is TSC, which is always set"),
            ("hcr::FMO: 1 << 3 => a bit more", "bit 4 is IMO, which is always set"),
            ("hcr::TSC: 1 << 19 => a bit more", "bit 20 is TIDCP, which is always set"),
            ("hcr::APK: 1 << 40 => a bit more", "bit 41 is API, which is always set"),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/serial_port/mod.rs",
        mutants: &[
            ("serial_port::RESET_READS: 1 << 16 => a bit more", PAUSE),
            ("serial_port::reset: 0 => 1 #2", PAUSE),
            ("SerialPort::poll: 0 => 1 #3", WHOLE_COPY),
            ("serial_port::negotiate: 0 => 1", "bit 0 is none of the wanted features"),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/serial_port/queue.rs",
        mutants: &[
            ("Queue::take: 0 => 1 #2", WHOLE_COPY),
            ("Queue::lend: 0 => 1 #2", "without the flag NEXT, a device ignores the field"),
            ("Queue::want_interrupts: self.interrupts != wanted => true", SAME_VALUE),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/stage1.rs",
        mutants: &[
            ("stage1::TOP_BYTE: 0xff << 56 => a bit more", "there is no bit above bit 63"),
            (
                "root::BADDR: 0x0000_ffff_ffff_fffe => its lowest bit clear",
                "the smallest table has 16 bytes, so its alignment clears bit 1 too",
            ),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/switch/cpu.rs",
        mutants: &[
            ("LastVcpu::is_other: other => true", SAME_VALUE),
            ("Switch::new: 0 => 1", "no guest has VMID 0, so the VTTBR_EL2 of each differs from both"),
        ],
    },
    Excused {
        file: "crates/hypervisor/src/switch/state.rs",
        mutants: &[("State::from_records: 0 => 1", EACH_RECORD), ("State::from_records: 0 => 1 #2", EACH_RECORD)],
    },
    Excused {
        file: "crates/hypervisor/src/switch/table.rs",
        mutants: &[("table::encoding: 0 => 1", "the bit is shifted out of the 16 bits")],
    },
    Excused {
        file: "crates/hypervisor/src/translate.rs",
        mutants: &[("translate::PAGE: 0x000f_ffff_ffff_f000 => a bit more", "no output address has 53 bits")],
    },
];

const FIRST_LOOK: &str = "the first look of each exit sets the value before it is read";
const WHOLE_COPY: &str = "a copy from the shared memory overwrites each byte";
const EACH_RECORD: &str = "records replace PC and x0, or the state is refused";
