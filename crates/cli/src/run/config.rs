// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file of `--config`.
//!
//! Invariant: a key that has no meaning is an error, which names the file, the line, and the keys that there are.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use twofold_launch::spec::Spec;

use super::options::PagesOption;

/// What the file has.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The guests. The first may lack a name.
    #[serde(default)]
    pub guest: Vec<Spec>,
    /// As `--image`.
    pub image: Option<PathBuf>,
    /// As `--restart`.
    #[serde(default)]
    pub restart: bool,
    /// As `--share-resident`.
    #[serde(default)]
    pub share_resident: bool,
    /// As `--host-cpus`.
    pub host_cpus: Option<u32>,
    /// As `--pages`.
    pub pages: Option<PagesOption>,
}

impl Config {
    /// Reads it.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("--config: cannot read {}", path.display()))?;
        Self::parse(&text).map_err(|why| anyhow!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|why| why.to_string().trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_with_its_line_and_what_would_be_right() {
        for (text, line, right) in [
            ("[[guest]]\nname = \"a\"\ncpu = 2\n", 3, "unknown field `cpu`, expected one of `name`, `cpus`"),
            ("host_cpus = 2\n", 1, "expected one of `guest`, `image`, `restart`, `share-resident`, `host-cpus`"),
            ("\n[[guest]]\nmemory = \"much\"\n", 3, "give a number of bytes, or one with K, M or G, such as 512M"),
            ("[[guest]]\ncpus = \"two\"\n", 2, "expected u32"),
            ("[[guest]]\nnet = [\"tap\"]\n", 2, "give user"),
            ("pages = \"16k\"\n", 1, "expected one of `auto`, `4k`, `blocks`"),
            ("[[guest]\n", 1, "expected"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(&format!("line {line}")) && error.contains(right), "{text}: {error}");
        }
    }
}
