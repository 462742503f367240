// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The power is cut while the guest writes to a store that forgets what was not flushed.
//!
//! C1 fio verifies the disk. C2 The guest writes one file after the other; it prints a file's number and sum only once `sync`
//! has returned. Beside that it writes past the page cache, without a flush, so that the store always has something to forget.
//! C3 After some files QEMU is killed, then the store forgets. C4 The guest boots on what is left: e2fsck finds no error,
//! and each file that was printed has its sum.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, bail, ensure};
use twofold_launch::devices::Backing;
use twofold_launch::{Driver, RunError};

use super::debian::{self, Guests, VERIFY};
use super::forgetful::Store;
use super::nbd::Server;

/// The files that are synced before the cut: at least this many, and at most twice.
const FILES: u64 = 10;

const WRITE: &str = "
mkdir -p /root/files
(while :; do dd if=/dev/urandom of=/root/unsynced bs=64k count=64 conv=notrunc oflag=direct 2> /dev/null; done) &
number=0
while :; do
    head -c $((number * 1000 + 1)) /dev/urandom > /root/files/$number
    sync /root/files/$number
    sum=$(sha256sum < /root/files/$number)
    echo \"synced $number ${sum%% *}\"
    number=$((number + 1))
done
";

/// The test of the steps above.
pub fn survives(guests: &Guests) -> anyhow::Result<()> {
    let seed = RandomState::new().hash_one(0) % FILES;
    println!("cut: after file {} (seed {seed})", FILES + seed);
    let debian = guests.debian()?;
    let socket = guests.path("cut.socket");
    let server = Server::start(Store::open(&debian.root.image)?, &socket).context("no server of the store")?;
    let disk = || Backing::Server(socket.clone());

    let mut synced = BTreeMap::new();
    let watch = |driver: Driver| -> anyhow::Result<()> {
        let lines = driver.lines;
        let mut verified = false;
        for line in lines {
            verified |= line.trim_end() == "fio: verified";
            if let Some((number, sum)) = line.trim_end().strip_prefix("synced ").and_then(|rest| rest.split_once(' ')) {
                synced.insert(number.parse::<u64>()?, sum.to_owned());
            }
            if synced.len() as u64 == FILES + seed {
                ensure!(verified, "fio has verified nothing");
                // Ends the machine at once.
                return Err(RunError::Stopped.into());
            }
        }
        bail!("the guest ended after {} files", synced.len());
    };
    let guest = guests.guest(debian, "cut", disk(), &format!("{VERIFY}{WRITE}"))?;
    match guests.run_driven(guest, watch) {
        Err(error) if matches!(error.downcast_ref(), Some(RunError::Stopped)) => {}
        Err(error) => return Err(error),
        Ok(_) => bail!("the guest ended by itself"),
    }
    ensure!(server.cut(), "the store had nothing to forget, so this shows nothing");
    ensure!(server.look(Store::flushes) >= FILES, "no flush reached the store for each file");

    let list: String = synced.iter().map(|(number, sum)| format!("{number} {sum}\n")).collect();
    let check = format!(
        "bad=0
while read -r number sum; do
    [ \"$(sha256sum < /root/files/$number)\" = \"$sum  -\" ] || {{ echo \"file $number is lost\"; bad=1; }}
done << END
{list}END
exit $bad
"
    );
    let mut guest = guests.guest(debian, "cut", disk(), &check)?;
    guest.command_line.push_str(debian::CHECK_ALL);
    debian::has_line(&guests.run(vec![guest])?, |line| line == debian::CLEAN).context("e2fsck complains")
}
