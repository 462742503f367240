// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--policy KEY=VALUE[,VALUE]`: each technique, its baseline, or both in turns.

use std::str::FromStr;

use clap::ValueEnum;

use crate::experiment::setup::{Cmo, Coalesce, Policies, Split, Tables};

/// The chosen policies of one technique. Several take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Which entries a split visits.
    Split(Vec<Split>),
    /// Which vCPU cleans caches.
    Cmo(Vec<Cmo>),
    /// When the old tables are freed.
    Coalesce(Vec<Coalesce>),
    /// When table pages are allocated.
    Tables(Vec<Tables>),
}

impl Choice {
    /// The technique's key on the command line.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Split(_) => "split",
            Self::Cmo(_) => "cmo",
            Self::Coalesce(_) => "coalesce",
            Self::Tables(_) => "tables",
        }
    }

    /// `policies`, once with each chosen value of this technique.
    fn of(&self, policies: Policies) -> Vec<Policies> {
        match self {
            Self::Split(all) => all.iter().map(|split| Policies { split: *split, ..policies }).collect(),
            Self::Cmo(all) => all.iter().map(|cmo| Policies { cmo: *cmo, ..policies }).collect(),
            Self::Coalesce(all) => all.iter().map(|coalesce| Policies { coalesce: *coalesce, ..policies }).collect(),
            Self::Tables(all) => all.iter().map(|tables| Policies { tables: *tables, ..policies }).collect(),
        }
    }
}

/// All combinations of the choices, in their order. Without choices, every technique is on.
///
/// # Errors
///
/// The same technique is chosen twice.
pub fn policies(choices: &[Choice]) -> anyhow::Result<Vec<Policies>> {
    let mut all = vec![Policies::default()];
    for (at, choice) in choices.iter().enumerate() {
        let twice = choices[..at].iter().any(|before| before.key() == choice.key());
        anyhow::ensure!(!twice, "--policy {0} was given twice: give --policy {0}=A,B once", choice.key());
        all = all.into_iter().flat_map(|policies| choice.of(policies)).collect();
    }
    Ok(all)
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or_else(|| format!("`{text}`: give {KEYS}"))?;
        match key {
            "split" => parse(key, values).map(Self::Split),
            "cmo" => parse(key, values).map(Self::Cmo),
            "coalesce" => parse(key, values).map(Self::Coalesce),
            "tables" => parse(key, values).map(Self::Tables),
            _ => Err(format!("there is no policy `{key}`: give {KEYS}")),
        }
    }
}

const KEYS: &str = "split=..., cmo=..., coalesce=... or tables=...";

fn parse<T: ValueEnum + PartialEq>(key: &str, text: &str) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    for word in text.split(',') {
        let value = T::from_str(word, false).map_err(|_| {
            let possible = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<_> = possible.map(|value| value.get_name().to_owned()).collect();
            format!("there is no `{key}={word}`; there are {}", names.join(", "))
        })?;
        if values.contains(&value) {
            return Err(format!("`{key}={word}` twice"));
        }
        values.push(value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_with_each() {
        let choices = ["split=every-level,records", "tables=always"].map(|text| text.parse::<Choice>().unwrap());
        let all = policies(&choices).unwrap();
        assert_eq!(all.iter().map(|policies| policies.split).collect::<Vec<_>>(), [Split::EveryLevel, Split::Records]);
        assert!(all.iter().all(|policies| policies.tables == Tables::Always));
        assert_eq!(policies(&[]).unwrap(), [Policies::default()]);
        assert!(policies(&[choices[0].clone(), choices[0].clone()]).is_err());
    }

    #[test]
    fn what_is_no_choice() {
        for bad in ["split", "split=", "split=all", "cut=records", "split=records,records"] {
            assert!(bad.parse::<Choice>().is_err(), "{bad}");
        }
        assert!("split=all".parse::<Choice>().unwrap_err().contains("every-level"));
    }
}
