//! Variables that the operator gives to trials, and redaction of their values in everything that is
//! stored or shown.
//!
//! Values exist only here and in the environments of scripts: specs, queue, journal and records
//! contain templates. Everything that a script prints or leaves in its logs passes a [`Redactor`]
//! before it is written to disk. It knows declared secrets and values that look like secrets;
//! other values are never changed. Files that are kept as data pass the declared ones alone.

mod classes;
mod encodings;
mod expand;
mod redactor;
mod scan;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use self::classes::{MaskedVariables, is_secret_name, looks_secret};
pub use self::redactor::{RedactingStream, RedactionStyle, Redactor};
pub use self::scan::SecretScan;

/// Variables that trials may refer to, with their values. Its debug output has only names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TrialVariables(BTreeMap<String, String>);

impl TrialVariables {
    /// These variables and no others.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().collect())
    }

    /// The variables of `environment` that match a pattern: `NAME`, or `PREFIX*` for every name
    /// with this prefix.
    pub fn select<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let (mut names, mut prefixes) = (BTreeSet::new(), Vec::new());
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                Some(prefix) => prefixes.push(prefix),
                None => drop(names.insert(pattern)),
            }
        }
        let wanted = |name: &str| {
            names.contains(name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        Self::new(environment.into_iter().filter(|(name, _)| wanted(name)))
    }

    /// These and others, which take precedence.
    #[must_use]
    pub fn with(mut self, others: &Self) -> Self {
        self.0.extend(others.0.clone());
        self
    }

    /// The names, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Debug for TrialVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
