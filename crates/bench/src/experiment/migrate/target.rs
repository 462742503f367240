// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a move: it makes a guest of what comes, and has its memory compared before the guest's first entry.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use twofold_launch::migrate::record::Record;
use twofold_machine::fast::FastPlatform;
use twofold_machine::key_value::Server;
use twofold_memory::dirty::{LogOptions, Tracker};
use twofold_memory::swap::PageStore;
use twofold_migration::commit::{Embedder, Ownership, Request};
use twofold_migration::ram::{GuestRam, RamError};
use twofold_migration::stream::{Compression, Hello, Message, Slot, Writer};
use twofold_migration::{PageSet, Section, receive};

use super::compare::Compared;
use super::guest::Guest;
use super::judged::Judged;
use super::link::Sender;
use super::lists;
use super::place::{Made, Place};
use super::settings::Settings;
use super::source::{VCPU, VCPU_VERSION};
use crate::experiment::host_clock::Moment;

/// The target's embedder.
pub struct Target<'n> {
    settings: &'n Settings,
    place: &'n mut Place,
    record: &'n Record,
    number: u64,
    link: Option<Sender>,
    /// The answers, once one was sent.
    pub answers: Option<Writer<Sender>>,
    made: Option<Made>,
    servers: Vec<Server>,
    /// Where absent pages come from, if pages may be absent.
    pub store: Option<Arc<Judged>>,
    /// The guest, once it could run.
    pub guest: Option<Guest>,
    /// The switch, once this side owns the guest; or why the guest does not run.
    pub switch: Option<anyhow::Result<Switch>>,
}

/// A guest that has changed hands.
#[derive(Debug)]
pub struct Switch {
    /// When all vCPUs were in the guest.
    pub entered: Moment,
    /// How long the comparison took.
    pub judged: Duration,
    /// What was compared.
    pub compared: Compared,
    /// The requests that the guest had served before.
    pub served: u64,
}

impl<'n> Target<'n> {
    /// The target of a move.
    pub fn new(settings: &'n Settings, place: &'n mut Place, record: &'n Record, number: u64, link: Sender) -> Self {
        Self {
            settings,
            place,
            record,
            number,
            link: Some(link),
            answers: None,
            made: None,
            servers: Vec::new(),
            store: None,
            guest: None,
            switch: None,
        }
    }

    /// The source's list of pages.
    pub fn source_list(&self) -> PathBuf {
        lists::path(self.settings, self.number, "source", "switch")
    }

    /// Compares the memory, and lets the vCPUs enter.
    fn enter(&self) -> anyhow::Result<Switch> {
        let guest = self.guest.as_ref().context("no guest was made")?;
        let ready = Moment::now();
        let here = lists::path(self.settings, self.number, "target", "switch");
        let (file, base) = self.place.memory_file()?;
        lists::write(&here, (&file, base), guest.memory(), guest.slots())?;
        let there = self.source_list();
        lists::wait(&there)?;
        let compared = lists::compare(&self.settings.program, &there, &here)?;
        let _ = std::fs::remove_file(&here);
        let (judged, served) = (Moment::now().since(ready), guest.served());
        guest.start();
        Ok(Switch { entered: guest.entered()?, judged, compared, served })
    }
}

impl Embedder for Target<'_> {
    fn ask(&mut self, request: Request) -> Option<Ownership> {
        self.record.ask(request, || true).ok()
    }

    fn run(&mut self) {
        self.switch = Some(self.enter());
    }

    /// A process that ends takes the guest with it: the bench ends too.
    fn boot(&mut self) {}

    fn release(&mut self) {
        let vm = match (self.made.take(), self.guest.take().map(Guest::end)) {
            (Some(made), _) => Some(made.vm),
            (None, ended) => ended.and_then(Result::ok),
        };
        vm.into_iter().for_each(|vm| self.place.end(vm));
    }

    fn announce(&mut self, now: Ownership) {
        receive::Host::answer(self, &Message::Taken(now));
    }
}

impl receive::Host for Target<'_> {
    type Ram<'a>
        = GuestRam<'a, FastPlatform>
    where
        Self: 'a;

    fn build(&mut self, hello: &Hello, slots: &[Slot], absent: bool) -> Result<(), String> {
        if hello.vcpus != self.settings.vcpus {
            return Err(format!("the guest has {} vCPUs, and {} were to come", hello.vcpus, self.settings.vcpus));
        }
        let store = absent.then(|| Judged::new(self.place.machine(), slots)).transpose();
        self.store = store.map_err(|error| format!("{error:#}"))?;
        let store = self.store.as_ref().map(|store| Box::new(Arc::clone(store)) as Box<dyn PageStore>);
        self.made = Some(self.place.make(self.settings, slots, store).map_err(|error| format!("{error:#}"))?);
        Ok(())
    }

    fn ram(&self) -> Result<GuestRam<'_, FastPlatform>, RamError> {
        let made = self.made.as_ref().ok_or(RamError::NoPage { slot: 0, page: 0 })?;
        GuestRam::new(made.vm.memory(), LogOptions::new(Tracker::Manual), &made.slots)
    }

    fn section(&mut self, section: Section) -> Result<(), String> {
        let Section { name, instance, version, bytes } = section;
        if (name.as_str(), instance as usize, version) != (VCPU, self.servers.len(), VCPU_VERSION) {
            return Err(format!("section {name}, instance {instance}, version {version} is not known here"));
        }
        self.servers.push(Server::from_bytes(&bytes).ok_or_else(|| format!("the state of vCPU {instance} is none"))?);
        Ok(())
    }

    fn absent(&mut self, absent: &PageSet) -> Result<(), String> {
        let (made, store) = self.made.as_ref().zip(self.store.as_ref()).ok_or("no guest was made for absent pages")?;
        store.peer().absent(made.vm.memory(), absent).map_err(|error| error.to_string())
    }

    fn ready(&mut self) -> Result<(), String> {
        let (came, wanted) = (self.servers.len(), self.settings.vcpus);
        if came != wanted as usize {
            return Err(format!("the state of {came} vCPUs came, and the guest has {wanted}"));
        }
        let made = self.made.take().ok_or("no guest was made")?;
        let guest = Guest::new(self.settings, made, std::mem::take(&mut self.servers));
        self.guest = Some(guest.map_err(|error| format!("{error:#}"))?);
        Ok(())
    }

    fn answer(&mut self, message: &Message) {
        if let Some(link) = self.link.take() {
            let new = if self.store.is_some() { Writer::with_absent } else { Writer::new };
            self.answers = Some(new(link, Compression::Off));
        }
        if let Some(answers) = &mut self.answers {
            let _ = answers.message(message);
        }
    }
}
