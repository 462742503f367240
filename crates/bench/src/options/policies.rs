// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--policy KEY=VALUE[,VALUE]`: each technique, its baseline, or both in turns.

use std::str::FromStr;

use twofold_workload::policies::{Policies, Policy};

/// The chosen policies of one technique. Several take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The technique's key.
    pub key: &'static str,
    chosen: Vec<Policy>,
}

/// All combinations of the choices, in their order. Without choices, every technique is on.
///
/// # Errors
///
/// The same technique is chosen twice.
pub fn policies(choices: &[Choice]) -> anyhow::Result<Vec<Policies>> {
    let mut all = vec![Policies::default()];
    for (at, Choice { key, chosen }) in choices.iter().enumerate() {
        let twice = choices[..at].iter().any(|other| other.key == *key);
        anyhow::ensure!(!twice, "--policy {key} was given twice: give --policy {key}=A,B once");
        all = all.into_iter().flat_map(|policies| chosen.iter().map(move |policy| policies.with(*policy))).collect();
    }
    Ok(all)
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const KEYS: &str = "split=..., cmo=..., coalesce=... or tables=...";
        let (key, names) = text.split_once('=').ok_or_else(|| format!("`{text}`: give {KEYS}"))?;
        let known = Policies::KEYS.into_iter().find(|known| *known == key);
        let key = known.ok_or_else(|| format!("there is no policy `{key}`: give {KEYS}"))?;
        let of_key = || Policy::ALL.into_iter().filter(|policy| policy.key() == key);
        let mut chosen = Vec::new();
        for name in names.split(',') {
            let policy = of_key().find(|policy| policy.name() == name).ok_or_else(|| {
                let names: Vec<_> = of_key().map(Policy::name).collect();
                format!("there is no `{key}={name}`; there are {}", names.join(", "))
            })?;
            if chosen.contains(&policy) {
                return Err(format!("`{key}={name}` twice"));
            }
            chosen.push(policy);
        }
        Ok(Self { key, chosen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_workload::policies::{Split, Tables};

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
