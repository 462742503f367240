// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outputs of an experiment: text on standard output, and files.
//!
//! Invariant: a file that cannot be written is reported before the experiment, not after it.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::options::OutputOptions;
use crate::output;
use crate::results::Results;
use crate::stop::INTERRUPTED;

use super::csv::csv;
use super::html::html;
use super::text::{Detail, text};

/// How much of an experiment is printed, and its output files, which can be written.
#[derive(Clone, Debug, Default)]
pub struct Files(OutputOptions);

impl Files {
    /// Checks that all files can be written.
    ///
    /// # Errors
    ///
    /// A file cannot be written; the error has its name and the reason.
    pub fn check(options: &OutputOptions) -> anyhow::Result<Self> {
        options.files().try_for_each(|(option, path)| check_file(option, path))?;
        Ok(Self(options.clone()))
    }

    /// Prints the results and writes the files. Returns the exit status: 130, as in a shell, if a signal ended the
    /// program.
    ///
    /// # Errors
    ///
    /// A file could not be written after all. The table was printed.
    pub fn show(&self, results: &Results) -> anyhow::Result<ExitCode> {
        let code = self.print(results)?;
        self.write(results)?;
        Ok(code)
    }

    /// Prints the results. Returns the exit status as [`show`](Self::show) does.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written.
    pub fn print(&self, results: &Results) -> anyhow::Result<ExitCode> {
        output::line(&text(results, Detail::of(self.0.all)))?;
        Ok(if results.interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
    }

    /// Writes the files.
    ///
    /// # Errors
    ///
    /// A file could not be written after all.
    pub fn write(&self, results: &Results) -> anyhow::Result<()> {
        let OutputOptions { json, csv, report, .. } = &self.0;
        json.as_deref().map_or(Ok(()), |path| results.write(path))?;
        csv.as_deref().map_or(Ok(()), |path| write_csv(path, results))?;
        report.as_deref().map_or(Ok(()), |path| write_html(path, results))
    }
}

/// Writes the page to `path`.
///
/// # Errors
///
/// An error is returned if the file cannot be written, or the results cannot be drawn. A file that was there before is
/// kept.
pub fn write_html(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &html(results)?)
}

/// Writes a line for each run of each figure to `path`.
///
/// # Errors
///
/// The same as [`write_html`].
pub fn write_csv(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &csv(results)?)
}

fn check_file(option: &str, path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(path != Path::new("-"), "{option}: standard output is for the table; name a file");
    if let Ok(there) = fs::metadata(path) {
        // The new file replaces a file at that path.
        ensure!(there.is_file(), "{option}: {shown} is a directory or a device; name a file");
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(directory.is_dir(), "{option}: there is no directory {}; make it first", directory.display());
    // Creates a file and drops it: permission bits alone do not prove that this works.
    let trial = tempfile::NamedTempFile::new_in(directory);
    trial.map(drop).with_context(|| format!("{option}: cannot write to the directory {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_written_are_reported_first() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |path: &Path| check_file("--json", path).err().map(|error| error.to_string());
        assert_eq!(refused(&directory.path().join("x.json")), None);
        assert!(refused(directory.path()).unwrap().contains("name a file"));
        assert!(refused(&directory.path().join("none/x.json")).unwrap().contains("make it first"));
        assert!(refused(Path::new("/dev/null")).unwrap().contains("name a file"));
        assert!(refused(Path::new("-")).unwrap().contains("name a file"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let options = OutputOptions { csv: Some("/none/x.csv".into()), ..OutputOptions::default() };
        assert!(Files::check(&options).unwrap_err().to_string().starts_with("--csv"));
    }

    #[test]
    fn every_phase_and_every_policy_is_explained() {
        use crate::experiment::page_table::Stage;
        use crate::report::explained;
        use twofold_workload::policies::{Policies, Policy};

        let phases = [
            "iteration",
            "before",
            "logged",
            "after",
            "lost",
            "per second of CPU",
            "dirty 12",
            "migration",
            "downtime",
            "rate before",
            "rate during",
            "rate after",
            "requests during",
            "pages sent",
            "pages sent again",
            "rounds sent",
            "bytes sent",
            "work at 10 ms",
            "pages",
            "guest's work at 80 %",
            "migration",
            "downtime",
        ];
        let stages = Stage::ALL.map(Stage::name);
        for name in phases.into_iter().chain(stages).chain(twofold_abi::vendor::PHASES) {
            assert!(explained::phase(name).is_some_and(|sentence| sentence.ends_with('.')), "{name}");
        }
        for policy in Policy::ALL {
            let (key, name) = (policy.key(), policy.name());
            assert!(explained::value(key, name).is_some(), "{key} {name}");
            let is_default = Policies::default().with(policy) == Policies::default();
            assert_eq!(explained::is_usual(key, name), is_default, "{key} {name}");
        }
        for tracker in twofold_memory::dirty::Tracker::ALL {
            assert!(explained::value("tracker", tracker.name()).is_some(), "{}", tracker.name());
        }
        assert!(explained::value("tracker", "post-copy").is_some());
        for mode in ["off", "halt", "pv"] {
            assert!(explained::value("async", mode).is_some(), "{mode}");
        }
    }
}
