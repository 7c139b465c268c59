//! Files that masks of plain variables would change: `tests/bench/secret_hits`.
//!
//! Reads real files up to a number of bytes, and counts those in which a value is found: if the value
//! of every variable is masked, and if only likely secrets are. Prints figures and asserts nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rollout_base::secrets::{Redactor, TrialVariables};

const USAGE: &str = "usage: secret_hits [--mib N] DIRECTORY...";

/// Variables of usual jobs that are no secrets.
const PLAIN: &[(&str, &str)] = &[
    ("SEED", "1234"),
    ("ON", "true"),
    ("DEBUG", "false"),
    ("PORT", "8080"),
    ("MODE", "test"),
    ("REGION", "us-east-1"),
    ("METRIC", "accuracy"),
    ("MODEL", "gpt-4o-mini-2024-07-18"),
    ("BASE_URL", "https://api.example.com/v1"),
    ("DATA_DIR", "/data"),
    ("MAX_TOKENS", "4096"),
    ("USE_AUTH", "true"),
    ("LOG_LEVEL", "info"),
];

/// Likely secrets: no real file holds one.
const SECRETS: &[(&str, &str)] = &[
    ("OPENAI_API_KEY", "sk-proj-Zk3v9QxT1mB7yWc5"),
    ("HF_TOKEN", "hf_QmZt7VdXk2Rw9LbJ"),
    ("DATABASE", "postgres://app:n0tAGu3ss@db:5432/x"),
    ("SESSION", "b7Qz0cXv4Tn8Lk2Ry6Wd1Hs9"),
];

/// Files and bytes that were read, and files with a value, by the variable.
#[derive(Default)]
struct HitCounts {
    files: u64,
    bytes: u64,
    changed: [u64; 2],
    by_variable: [BTreeMap<String, u64>; 2],
}

fn main() -> ExitCode {
    match measure(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "secret_hits: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn measure(words: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let (mut directories, mut most, mut words) = (Vec::new(), 1024_u64 << 20, words);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--mib" => most = words.next().ok_or(USAGE)?.parse::<u64>()? << 20,
            _ if word.starts_with('-') => return Err(USAGE.into()),
            _ => directories.push(PathBuf::from(word)),
        }
    }
    if directories.is_empty() {
        return Err(USAGE.into());
    }
    let variables = PLAIN.iter().chain(SECRETS).copied();
    let known = TrialVariables::new(variables.map(|(name, value)| (name.into(), value.into())));
    let names = || known.names().map(str::to_owned);
    let masked = known.masked(names(), &BTreeSet::new());
    let is_masked = |name: &str| masked.guessed.contains(name);
    let some = PLAIN.iter().chain(SECRETS).copied().filter(|(name, _)| is_masked(name));
    let redactors = [Redactor::new(PLAIN.iter().chain(SECRETS).copied()), Redactor::new(some)];
    let mut hits = HitCounts::default();
    for directory in &directories {
        visit(directory, &redactors, most, &mut hits);
    }
    report(&hits, &masked.guessed)?;
    Ok(())
}

/// Reads the files below a directory; what cannot be read is left out.
fn visit(path: &Path, redactors: &[Redactor; 2], most: u64, hits: &mut HitCounts) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return };
    if hits.bytes >= most {
    } else if metadata.is_dir() {
        let Ok(entries) = std::fs::read_dir(path) else { return };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            visit(&path, redactors, most, hits);
        }
    } else if metadata.is_file() {
        hits.files += 1;
        hits.bytes += metadata.len();
        for (at, redactor) in redactors.iter().enumerate() {
            let Ok(found) = redactor.found_in_file(path) else { continue };
            hits.changed[at] += u64::from(!found.is_empty());
            for name in found {
                *hits.by_variable[at].entry(name.to_string()).or_default() += 1;
            }
        }
    }
}

fn report(hits: &HitCounts, masked: &BTreeSet<String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{} files, {} MiB", hits.files, hits.bytes >> 20)?;
    writeln!(out, "taken for secrets: {masked:?}")?;
    for (at, rule) in ["every value", "likely secrets"].iter().enumerate() {
        let (changed, by_variable) = (hits.changed[at], &hits.by_variable[at]);
        writeln!(out, "{rule}: {changed} files with a hit, by variable {by_variable:?}")?;
    }
    Ok(())
}
