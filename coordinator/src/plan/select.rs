//! The trials of a plan that a user's selection names.

use rollout_protocol::wire::command::TrialSelection;

use super::{JobPlan, PlannedTask};

impl JobPlan {
    /// The first position from `ordinal` on that a selection may name, or `None` if it names no trial
    /// there. The selection names the trial at `ordinal` exactly if that is the answer.
    ///
    /// Looks at the tasks of one agent at most, so that a caller can pause between two positions.
    pub fn next_selected(&self, selection: &TrialSelection, ordinal: u64) -> Option<u64> {
        let place = self.place(ordinal)?;
        let of_agent = self.trials_per_agent();
        if let Some(name) = &selection.agent {
            let agent = *self.agent_index.get(name)?;
            if place.agent != agent {
                return (place.agent < agent).then(|| agent as u64 * of_agent);
            }
        }
        let (attempts, begin) = (u64::from(self.n_attempts), place.agent as u64 * of_agent);
        match self.task_from(selection, place.task) {
            Some(task) if task == place.task => {}
            Some(task) => return Some(begin + task as u64 * attempts),
            None => return Some(begin + of_agent),
        }
        let Some(attempt) = selection.attempt else { return Some(ordinal) };
        if !(1..=self.n_attempts).contains(&attempt) {
            return None;
        }
        let of_task = begin + place.task as u64 * attempts;
        let is_past = place.attempt > attempt;
        Some(of_task + u64::from(attempt - 1) + if is_past { attempts } else { 0 })
    }

    /// The first task from an index on that a selection names.
    fn task_from(&self, selection: &TrialSelection, from: usize) -> Option<usize> {
        if let (Some(dataset), Some(task)) = (&selection.dataset, &selection.task) {
            let index = *self.task_index.get(&(dataset.clone(), task.clone()))?;
            return (index >= from).then_some(index);
        }
        let of = |asked: &Option<String>, name: &str| asked.as_ref().is_none_or(|a| a == name);
        let is_named = |task: &PlannedTask| {
            of(&selection.dataset, &task.dataset) && of(&selection.task, &task.name)
        };
        self.tasks[from..].iter().position(is_named).map(|index| from + index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    /// The trials that a selection names, and the steps that this took.
    fn selected(plan: &JobPlan, selection: &TrialSelection) -> (Vec<u64>, u64) {
        let (mut found, mut from, mut steps) = (Vec::new(), 0, 0);
        while let Some(next) = plan.next_selected(selection, from) {
            steps += 1;
            assert!(next >= from, "it goes on");
            if next == from {
                found.push(from);
                from += 1;
            } else {
                from = next;
            }
        }
        (found, steps)
    }

    #[test]
    fn selection_names_the_trials_that_have_its_parts() {
        let plan = plan(3, 2, 1, 3);
        let options = |values: &[&str]| -> Vec<Option<String>> {
            let named = values.iter().map(|value| Some((*value).to_owned()));
            named.chain([None]).collect()
        };
        for agent in options(&["agent0", "agent2", "unknown"]) {
            for dataset in options(&["a", "b", "unknown"]) {
                for task in options(&["a0", "a1", "b0", "unknown"]) {
                    for attempt in [None, Some(0), Some(1), Some(3), Some(4)] {
                        let (agent, dataset) = (agent.clone(), dataset.clone());
                        let selection =
                            TrialSelection { agent, dataset, task: task.clone(), attempt };
                        let of = |asked: &Option<String>, name: &str| {
                            asked.as_ref().is_none_or(|asked| asked == name)
                        };
                        let expected = plan.trials().filter(|trial| {
                            of(&selection.agent, &trial.name.agent)
                                && of(&selection.dataset, &trial.name.dataset)
                                && of(&selection.task, &trial.name.task)
                                && attempt.is_none_or(|asked| asked == trial.name.attempt)
                        });
                        let expected: Vec<u64> = expected.map(|trial| trial.ordinal).collect();
                        assert_eq!(selected(&plan, &selection).0, expected, "{selection:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn selection_of_one_trial_looks_at_few_others() {
        let plan = plan(3, 2, 0, 1000);
        let trial = plan.trial(4321).expect("planned").name;
        let selection = TrialSelection {
            agent: Some(trial.agent),
            dataset: Some(trial.dataset),
            task: Some(trial.task),
            attempt: Some(trial.attempt),
        };
        let (found, steps) = selected(&plan, &selection);
        assert_eq!(found, [4321]);
        assert!(steps < 10, "{steps}");
    }
}
