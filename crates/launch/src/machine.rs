// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that QEMU emulates, as command-line arguments.
//!
//! Invariants: two deterministic machines with equal settings execute the same instructions. No machine serves
//! semihosting: QEMU would serve it to the guest's kernel too, which EL2 cannot prevent, and so give it the user's files.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use crate::bundle::Bundle;

/// The default CPU model. Without `pauth-impdef`, pointer authentication makes TCG about four times slower.
pub const CPU_DEFAULT: &str = "max,pauth-impdef=on";
/// Bytes of the machine for the hypervisor and for alignment. Beside these it has the guest, its bundle, and a 128th of
/// both for tables and their metadata.
pub const HYPERVISOR_MEMORY: u64 = 192 << 20;
/// The physical address of the machine's memory.
pub const RAM_BASE: u64 = 1 << 30;
/// The least memory of the machine in bytes.
pub const MACHINE_MEMORY_MIN: u64 = 512 << 20;

/// What the image runs.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// Nothing: a test image.
    Nothing,
    /// A guest with this much memory in bytes.
    Guest {
        /// The file that carries it.
        bundle: Bundle,
        /// Guest RAM in bytes.
        memory: u64,
    },
    /// Nothing, because the image is not ours: a Linux kernel that runs at EL2 by itself. It has no control channel and
    /// no semihosting, and a reset ends it.
    Kernel {
        /// Its initrd.
        initrd: PathBuf,
        /// Its RAM in bytes.
        memory: u64,
    },
    /// Nothing, because the image is a guest that runs without a hypervisor: the CPUs have no EL2. It has no control
    /// channel and no semihosting, and a reset ends it.
    Alone {
        /// Its RAM in bytes.
        memory: u64,
    },
}

/// The settings of QEMU.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The flat image of the hypervisor or of a test, or a kernel.
    pub image: PathBuf,
    /// What the image runs.
    pub loaded: Loaded,
    /// Bytes of memory beyond the need of the image and its guest.
    pub spare_memory: u64,
    /// The command line (`bootargs`) of the image, or of a kernel by itself.
    pub append: Option<String>,
    /// CPU model, as QEMU's `-cpu` takes it.
    pub cpu: String,
    /// Number of physical CPUs.
    pub cpus: u32,
    /// A file that is the machine's memory, of its size: what the machine begins with, and what it leaves. `None`:
    /// memory that begins as zeroes.
    pub memory_file: Option<PathBuf>,
    /// One virtual nanosecond per instruction, and the same execution in every run. Forces one CPU.
    pub deterministic: bool,
}

impl Machine {
    /// Memory of the machine in bytes.
    pub fn memory(&self) -> u64 {
        let used = match &self.loaded {
            Loaded::Nothing => 0,
            Loaded::Guest { bundle, memory } => memory + bundle.size,
            Loaded::Kernel { memory, .. } | Loaded::Alone { memory } => return memory.next_multiple_of(1 << 20),
        };
        // -m counts MiB.
        (used + used / 128 + self.spare_memory + HYPERVISOR_MEMORY).max(MACHINE_MEMORY_MIN).next_multiple_of(1 << 20)
    }

    /// The names of the guests, if there are several.
    pub fn several(&self) -> &[String] {
        match &self.loaded {
            Loaded::Guest { bundle, .. } if bundle.names.len() > 1 => &bundle.names,
            _ => &[],
        }
    }

    /// QEMU's arguments. The descriptor `channel`, which QEMU inherits, is its end of the image's control channel.
    pub fn arguments(&self, channel: RawFd) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |option: &str, value: OsString| arguments.extend([OsString::from(option), value]);

        let virtualization = if let Loaded::Alone { .. } = self.loaded { "off" } else { "on" };
        let mut machine = format!("virt,virtualization={virtualization},gic-version=3");
        if self.deterministic {
            machine.push_str(",dtb-randomness=off");
        }
        if self.memory_file.is_some() {
            machine.push_str(",memory-backend=memory");
        }
        add("-M", machine.into());
        add("-cpu", self.cpu.clone().into());
        add("-m", format!("{}M", self.memory() >> 20).into());
        if let Some(path) = &self.memory_file {
            let mut backend =
                OsString::from(format!("memory-backend-file,id=memory,size={},share=on,mem-path=", self.memory()));
            backend.push(path);
            add("-object", backend);
        }
        if self.deterministic {
            add("-smp", "1".into());
            add("-accel", "tcg,thread=single".into());
            add("-icount", "shift=0,sleep=off".into());
            add("-rtc", "base=2026-01-01T00:00:00,clock=vm".into());
            add("-seed", "1".into());
        } else {
            add("-smp", self.cpus.to_string().into());
            add("-accel", "tcg".into());
        }
        add("-nic", "none".into());
        add("-display", "none".into());
        add("-serial", "stdio".into());
        add("-monitor", "none".into());
        add("-kernel", self.image.clone().into());
        if let Some(words) = &self.append {
            add("-append", words.into());
        }
        match &self.loaded {
            Loaded::Nothing => add_control(&mut add, channel),
            Loaded::Guest { bundle, .. } => {
                add_control(&mut add, channel);
                bundle.devices.add(&mut add);
                add("-initrd", bundle.path.clone().into());
            }
            Loaded::Kernel { initrd, .. } => {
                add("-initrd", initrd.clone().into());
                add_end(&mut add);
            }
            Loaded::Alone { .. } => add_end(&mut add),
        }
        arguments
    }
}

/// Ends the machine at a reset. A kernel has no exit status like our image: without this, a kernel that panics would boot
/// again and again.
fn add_end(add: &mut impl FnMut(&str, OsString)) {
    add("-action", "reboot=shutdown".into());
}

/// Adds the port of the control channel (`docs/control.md`).
fn add_control(add: &mut impl FnMut(&str, OsString), channel: RawFd) {
    add("-global", "virtio-mmio.force-legacy=false".into());
    add("-device", "virtio-serial-device,max_ports=2".into());
    add("-chardev", format!("socket,id=control,fd={channel}").into());
    add("-device", "virtserialport,chardev=control,nr=1,name=twofold.control".into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::HostDevices;

    fn machine() -> Machine {
        Machine {
            image: "twofold.img".into(),
            loaded: Loaded::Guest {
                bundle: Bundle {
                    path: "guest.bundle".into(),
                    size: 40 << 20,
                    names: Vec::new(),
                    devices: HostDevices::default(),
                },
                memory: 512 << 20,
            },
            spare_memory: 0,
            append: None,
            cpu: CPU_DEFAULT.to_owned(),
            cpus: 2,
            memory_file: None,
            deterministic: false,
        }
    }

    fn arguments(machine: &Machine) -> Vec<String> {
        let arguments = machine.arguments(7);
        arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn has(arguments: &[String], option: &str, value: &str) -> bool {
        arguments.windows(2).any(|pair| pair == [option, value])
    }

    #[test]
    fn an_ordinary_machine() {
        let arguments = arguments(&machine());
        assert!(has(&arguments, "-M", "virt,virtualization=on,gic-version=3"));
        assert!(has(&arguments, "-cpu", "max,pauth-impdef=on"));
        assert!(has(&arguments, "-m", "749M"));
        assert!(has(&arguments, "-smp", "2"));
        assert!(has(&arguments, "-serial", "stdio"));
        assert!(has(&arguments, "-monitor", "none"));
        assert!(has(&arguments, "-chardev", "socket,id=control,fd=7"));
        assert!(has(&arguments, "-device", "virtserialport,chardev=control,nr=1,name=twofold.control"));
        assert!(has(&arguments, "-kernel", "twofold.img"));
        assert!(has(&arguments, "-initrd", "guest.bundle"));
        assert!(!arguments.iter().any(|argument| ["-icount", "-append"].contains(&&**argument)));
    }

    #[test]
    fn a_deterministic_machine_has_one_cpu_and_a_counted_clock() {
        let arguments = arguments(&Machine { deterministic: true, ..machine() });
        for (option, value) in [
            ("-M", "virt,virtualization=on,gic-version=3,dtb-randomness=off"),
            ("-smp", "1"),
            ("-accel", "tcg,thread=single"),
            ("-icount", "shift=0,sleep=off"),
            ("-rtc", "base=2026-01-01T00:00:00,clock=vm"),
            ("-seed", "1"),
        ] {
            assert!(has(&arguments, option, value), "{option} {value}");
        }
    }

    #[test]
    fn a_file_can_be_the_memory() {
        let machine = Machine { memory_file: Some("/tmp/memory".into()), ..machine() };
        let arguments = arguments(&machine);
        assert!(has(&arguments, "-M", "virt,virtualization=on,gic-version=3,memory-backend=memory"));
        let backend = format!("memory-backend-file,id=memory,size={},share=on,mem-path=/tmp/memory", 749 << 20);
        assert!(has(&arguments, "-object", &backend));
    }

    #[test]
    fn a_test_image_has_a_command_line_and_no_guest() {
        let machine = Machine { loaded: Loaded::Nothing, append: Some("run=map".to_owned()), ..machine() };
        let arguments = arguments(&machine);
        assert!(has(&arguments, "-append", "run=map"));
        assert!(has(&arguments, "-m", "512M"));
        assert!(!arguments.iter().any(|argument| argument == "-initrd"));
    }

    #[test]
    fn a_kernel_by_itself_has_its_own_memory_and_words_and_no_control_channel() {
        let machine = Machine {
            image: "vmlinuz".into(),
            loaded: Loaded::Kernel { initrd: "initramfs.cpio".into(), memory: 1 << 30 },
            spare_memory: 1 << 30,
            append: Some("console=ttyAMA0".to_owned()),
            ..machine()
        };
        let arguments = arguments(&machine);
        for (option, value) in [
            ("-M", "virt,virtualization=on,gic-version=3"),
            ("-m", "1024M"),
            ("-kernel", "vmlinuz"),
            ("-initrd", "initramfs.cpio"),
            ("-append", "console=ttyAMA0"),
            ("-action", "reboot=shutdown"),
        ] {
            assert!(has(&arguments, option, value), "{option} {value}");
        }
        assert!(!arguments.iter().any(|argument| argument.contains("chardev")));
    }

    #[test]
    fn a_guest_by_itself_has_no_el2() {
        let machine = Machine {
            image: "guest".into(),
            loaded: Loaded::Alone { memory: 128 << 20 },
            append: Some("replay=1000".to_owned()),
            ..machine()
        };
        let arguments = arguments(&machine);
        for (option, value) in [
            ("-M", "virt,virtualization=off,gic-version=3"),
            ("-m", "128M"),
            ("-kernel", "guest"),
            ("-append", "replay=1000"),
            ("-action", "reboot=shutdown"),
        ] {
            assert!(has(&arguments, option, value), "{option} {value}");
        }
        assert!(!arguments.iter().any(|argument| argument.contains("semihosting") || argument == "-initrd"));
    }
}
