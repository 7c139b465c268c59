//! Variables that the operator gives to trials, and keeping their values out of everything that is
//! stored or shown.
//!
//! Values exist only here, in the environments of scripts, and nowhere else: specs, queue, journal
//! and records carry templates. Whatever a script prints or leaves in its logs goes through a
//! [`Redactor`] before it touches the disk.

mod encodings;
mod redactor;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rollout_protocol::template::{Template, Unset};

pub use self::redactor::{Redacting, Redactor, Style};

/// Variables that trials may refer to, with their values. Shows only names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TrialVariables(BTreeMap<String, String>);

impl TrialVariables {
    /// These variables and no others.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().collect())
    }

    /// The variables of `environment` that a pattern names: `NAME`, or `PREFIX*` for every name
    /// that begins so.
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

/// Environment variables for scripts, and what must not be seen of them.
#[derive(Clone, Default)]
pub struct Expanded {
    /// For the agent's scripts: the task's variables and the agent's own, which win.
    pub agent: BTreeMap<String, String>,
    /// For the task's tests: the task's variables. What was given to the agent is not theirs.
    pub verifier: BTreeMap<String, String>,
    /// Removes the values of the operator's variables that were used in either.
    pub redactor: Redactor,
}

impl fmt::Debug for Expanded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (agent, verifier) = (self.agent.keys(), self.verifier.keys());
        f.debug_struct("Expanded")
            .field("agent", &agent)
            .field("verifier", &verifier)
            .finish_non_exhaustive()
    }
}

impl TrialVariables {
    /// Expands the templates of a task and of an agent.
    ///
    /// # Errors
    /// [`Unset`] for the first variable that is not exported and has no default.
    pub fn expand(
        &self,
        task: &BTreeMap<String, Template>,
        agent: &BTreeMap<String, Template>,
    ) -> Result<Expanded, Unset> {
        let mut used = BTreeSet::new();
        let mut values = |templates: &BTreeMap<String, Template>| {
            let mut env = BTreeMap::new();
            for (name, template) in templates {
                let names = template.variables().into_iter().map(|(name, _)| name);
                used.extend(names.filter(|name| self.0.contains_key(name)));
                env.insert(name.clone(), template.expand(|name| self.0.get(name).cloned())?);
            }
            Ok(env)
        };
        let verifier = values(task)?;
        let mut both = verifier.clone();
        both.extend(values(agent)?);
        let redactor = Redactor::new(used.iter().map(|name| (name.as_str(), &*self.0[name])));
        Ok(Expanded { agent: both, verifier, redactor })
    }
}
