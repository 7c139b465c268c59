//! Parts of a selection of settled trials that no settled trial has.

use std::fmt;

use crate::open_error::first_names;

/// Names that a refusal has of each kind.
const MAX_NAMES: usize = 20;

/// Parts of a selection that no settled trial has. Written after `no settled trial `.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UnsettledSelection {
    /// Trials, by name or by item.
    pub(super) trials: Vec<String>,
    /// Agents.
    pub(super) agents: Vec<String>,
    /// Tasks.
    pub(super) tasks: Vec<String>,
    /// Agents that have settled trials, by name.
    pub(super) known_agents: Vec<String>,
}

impl UnsettledSelection {
    /// Whether settled trials have all parts.
    pub(super) fn is_empty(&self) -> bool {
        self.trials.is_empty() && self.agents.is_empty() && self.tasks.is_empty()
    }
}

impl fmt::Display for UnsettledSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agents = match self.known_agents.is_empty() {
            true => "no trial is settled".to_owned(),
            false => format!("agents with settled trials are {}", listed(&self.known_agents)),
        };
        let parts = [
            (&self.trials, "", "names are `agent/dataset/task__attempt`"),
            (&self.agents, "of agent ", agents.as_str()),
            (&self.tasks, "of task ", "names are `task` or `dataset/task`"),
        ];
        let mut between = "";
        for (names, of, known) in parts {
            if !names.is_empty() {
                write!(f, "{between}{of}{}: {known}", listed(names))?;
                between = "; no settled trial ";
            }
        }
        Ok(())
    }
}

fn listed(names: &[String]) -> String {
    first_names(&names[..names.len().min(MAX_NAMES)], names.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn unknown_agent_is_refused_with_the_agents_of_the_run() {
        let agents = UnsettledSelection {
            agents: names("zz"),
            known_agents: names("a b"),
            ..UnsettledSelection::default()
        };
        assert_eq!(agents.to_string(), "of agent zz: agents with settled trials are a, b");
        let none = UnsettledSelection { agents: names("zz"), ..UnsettledSelection::default() };
        assert_eq!(none.to_string(), "of agent zz: no trial is settled");
        let both = UnsettledSelection { tasks: names("t u"), ..none };
        assert_eq!(
            both.to_string(),
            "of agent zz: no trial is settled; no settled trial of task t, u: names are `task` or \
             `dataset/task`"
        );
        assert!(!both.is_empty() && UnsettledSelection::default().is_empty());
    }

    #[test]
    fn unknown_trials_are_refused_with_the_form_of_names() {
        let trials = (1..=22).map(|number| format!("k{number}")).collect();
        let text = UnsettledSelection { trials, ..UnsettledSelection::default() }.to_string();
        assert!(
            text.ends_with("k20 and 2 more: names are `agent/dataset/task__attempt`"),
            "{text}"
        );
    }
}
