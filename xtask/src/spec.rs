// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of `--guest`: the kind of the guest that the other options describe, or one more guest.
//!
//! Invariant: a value without `=` is a kind; any other one is a guest with a name, in which no key comes twice. Whether
//! its settings are possible is checked with those of the other guests.

use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use twofold_workspace::guest::Choice;
use twofold_workspace::size::Size;

/// A value of `--guest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestOption {
    /// The kind of the guest of the other options.
    Kind(Choice),
    /// One more guest.
    More(Spec),
}

/// One more guest. What is `None` is taken from the options of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// `name=`.
    pub name: String,
    /// `cpus=`.
    pub cpus: Option<u32>,
    /// `memory=`.
    pub memory: Option<Size>,
    /// `weight=`.
    pub weight: Option<u32>,
    /// `append=`.
    pub append: Option<String>,
    /// `kernel=`.
    pub kernel: Option<PathBuf>,
    /// `initrd=`; `Some(None)` for no initrd.
    pub initrd: Option<Option<PathBuf>>,
}

impl FromStr for GuestOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            return text.parse().map(Self::More);
        }
        let unknown = |_| format!("{text:?} is neither auto, linux or bare, nor a guest such as name=web,cpus=2");
        Choice::from_str(text, false).map(Self::Kind).map_err(unknown)
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        let mut seen = Vec::new();
        for part in parts(text) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("{part:?} is not KEY=VALUE; within a value, give a comma twice"));
            };
            let failed = |why| format!("{key}={value}: {why}");
            match key {
                "name" => value.clone_into(&mut spec.name),
                "cpus" => spec.cpus = Some(whole(value).map_err(failed)?),
                "memory" => spec.memory = Some(value.parse().map_err(failed)?),
                "weight" => spec.weight = Some(whole(value).map_err(failed)?),
                "append" => spec.append = Some(value.to_owned()),
                "kernel" if value.is_empty() => return Err(failed("give the path of an arm64 Image".to_owned())),
                "kernel" => spec.kernel = Some(value.into()),
                "initrd" => spec.initrd = Some((!value.is_empty()).then(|| value.into())),
                _ => return Err(format!("there is no {key:?}; the keys are {}", KEYS.join(", "))),
            }
            if seen.iter().any(|other| other == key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key.to_owned());
        }
        if spec.name.is_empty() {
            return Err("give the guest a name=, by which commands and messages refer to it".to_owned());
        }
        Ok(spec)
    }
}

const KEYS: [&str; 7] = ["name", "cpus", "memory", "weight", "append", "kernel", "initrd"];

fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "give a whole number".to_owned())
}

/// The parts between commas, of which two in a row are one within a part.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        if character == ',' && rest.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_kind() {
        assert_eq!("bare".parse(), Ok(GuestOption::Kind(Choice::Bare)));
        assert_eq!("linux".parse(), Ok(GuestOption::Kind(Choice::Linux)));
        assert!("bsd".parse::<GuestOption>().unwrap_err().contains("auto, linux or bare"));
    }

    #[test]
    fn every_key_is_read() {
        let text = "name=web,cpus=2,memory=256M,weight=128,append=console=ttyAMA0,,115200 a=b,kernel=k,initrd=";
        let Ok(GuestOption::More(spec)) = text.parse() else { panic!("not a guest") };
        let expected = Spec {
            name: "web".to_owned(),
            cpus: Some(2),
            memory: "256M".parse().ok(),
            weight: Some(128),
            append: Some("console=ttyAMA0,115200 a=b".to_owned()),
            kernel: Some("k".into()),
            initrd: Some(None),
        };
        assert_eq!(spec, expected);
        assert_eq!("name=web".parse(), Ok(Spec { name: "web".to_owned(), ..Spec::default() }));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("cpus=1", "name="),
            ("name=", "name="),
            ("name=a,cpu=1", "there is no \"cpu\"; the keys are name, cpus"),
            ("name=a,name=b", "name is given twice"),
            ("name=a,cpus=x", "cpus=x: give a whole number"),
            ("name=a,cpus=-1", "whole number"),
            ("name=a,memory=much", "memory=much: "),
            ("name=a,kernel=", "kernel="),
            ("name=a,,b", "name=a,b"),
            ("name=a,", "KEY=VALUE"),
            ("name=a,append=x,y", "\"y\" is not KEY=VALUE; within a value, give a comma twice"),
        ] {
            match text.parse::<Spec>() {
                Err(why) => assert!(why.contains(word), "{text}: {why}"),
                Ok(spec) => assert_eq!(format!("name={}", spec.name), word, "{text}"),
            }
        }
    }
}
