//! Expansion of templates, and redaction of their values.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::template::{Template, UnsetVariable};

use super::{Redactor, TrialVariables};

impl TrialVariables {
    /// A redactor for the declared secrets, for `logins`, and for those values of the operator's
    /// variables that `templates` use and that look like secrets. `logins` are names and values.
    ///
    /// # Errors
    /// [`UnsetVariable`] for the first variable that is not exported and has no default.
    pub fn redactor<'a>(
        &self,
        templates: impl Iterator<Item = &'a Template>,
        declared: &BTreeSet<String>,
        logins: &[(String, String)],
    ) -> Result<Redactor, UnsetVariable> {
        let mut used = BTreeSet::new();
        for template in templates {
            self.value(template)?;
            used.extend(template.variables().into_iter().map(|(name, _)| name));
        }
        let masked = self.masked(used, declared);
        let logins = logins.iter().map(|(name, login)| (name.as_str(), login.as_str()));
        let declared = self.pairs(&masked.declared).chain(logins);
        Ok(Redactor::with_guessed(declared, self.pairs(&masked.guessed)))
    }

    /// Names and values.
    fn pairs<'a>(
        &'a self,
        names: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        names.iter().filter_map(|name| Some((name.as_str(), self.0.get(name)?.as_str())))
    }

    /// The expanded value of a template.
    ///
    /// # Errors
    /// [`UnsetVariable`].
    pub fn value(&self, template: &Template) -> Result<String, UnsetVariable> {
        template.expand(|name| self.0.get(name).cloned())
    }

    /// Adds the values of `templates` to `env`, replacing those of the same names.
    ///
    /// # Errors
    /// [`UnsetVariable`].
    pub fn add(
        &self,
        templates: &BTreeMap<String, Template>,
        env: &mut BTreeMap<String, String>,
    ) -> Result<(), UnsetVariable> {
        for (name, template) in templates {
            env.insert(name.clone(), self.value(template)?);
        }
        Ok(())
    }
}
