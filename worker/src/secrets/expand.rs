//! Expansion of templates, and redaction of their values.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::template::{Template, UnsetVariable};

use super::{Redactor, TrialVariables};

impl TrialVariables {
    /// A redactor for the values of the operator's variables that `templates` use.
    ///
    /// # Errors
    /// [`UnsetVariable`] for the first variable that is not exported and has no default.
    pub fn redactor<'a>(
        &self,
        templates: impl Iterator<Item = &'a Template>,
    ) -> Result<Redactor, UnsetVariable> {
        let mut used = BTreeSet::new();
        for template in templates {
            self.value(template)?;
            let names = template.variables().into_iter().map(|(name, _)| name);
            used.extend(names.filter(|name| self.0.contains_key(name)));
        }
        Ok(Redactor::new(used.iter().map(|name| (name.as_str(), &*self.0[name]))))
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
