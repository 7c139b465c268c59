//! `budgets`: what a search may use.

use rollout_protocol::spec::budget::TryBudget;
use rollout_protocol::spec::gateway::GatewaySpec;

use super::super::diagnostics::ErrorKind;
use super::super::elements::budget;
use super::super::reader::Field;
use super::commands::{SearchCommand, SearchCommands};
use super::count;
use super::search::SearchSettings;

keys! {
    /// The keys of `budgets`.
    pub(crate) table BudgetKeys {
        evals: Value("integer"), "", "Alias of `max_total_idea_evals`.";
        seconds: Value("number"), "", "Total time of evals, s.";
        cost: Value("number"), "", "Total cost: reported by commands, and of model calls of agents.";
        depth_cost: Value("number"), "",
            "Cost of the model calls of each depth; fewer of its ideas are tried, so that `step.cost` suffices for each.";
        step: Value("table"), "no limits", "What the model calls of an agent may use each time that it does a command.",
            "step" => budget::LimitKeys::ALL, "step" => budget::StepReserveKeys::ALL;
    }
}

/// Budgets of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SearchBudgets {
    /// `evals`, or `max_total_idea_evals`.
    pub evals: Option<u32>,
    /// `seconds`: total time of evals.
    pub seconds: Option<f64>,
    /// `cost`: total cost, in the unit that commands report.
    pub cost: Option<f64>,
    /// `depth_cost`: cost of the model calls of each depth.
    pub depth_cost: Option<f64>,
    /// `step`: what an agent may use each time that it does a command.
    pub step: Option<TryBudget>,
}

impl SearchBudgets {
    /// Most that the agents of an attempt of an eval may cost.
    pub(super) fn max_attempt_cost(&self, commands: &SearchCommands) -> Option<f64> {
        let each = self.step?.limits.cost?;
        let steps = [Some(&commands.implement), commands.review.as_ref()];
        let agents = steps.into_iter().flatten().filter(|command| command.agent.is_some()).count();
        (agents > 0).then_some(each * agents as f64)
    }
}

/// Reads the budgets; `total` is `max_total_idea_evals`.
pub(super) fn read(field: &Field<'_>, total: &Field<'_>) -> SearchBudgets {
    let evals = count(total, 0);
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else {
        return SearchBudgets { evals, ..SearchBudgets::default() };
    };
    let here = fields.take(BudgetKeys::evals);
    if here.is_present() && total.is_present() {
        let found = format!("also `{}`", total.location().key);
        here.reject(ErrorKind::Conflict, found, "only one of the two");
    }
    let amount = |field: &Field<'_>| field.number("a number above 0", |v| v > 0.0 && v <= 1e12);
    let budgets = SearchBudgets {
        evals: count(&here, 0).or(evals),
        seconds: amount(&fields.take(BudgetKeys::seconds)),
        cost: amount(&fields.take(BudgetKeys::cost)),
        depth_cost: amount(&fields.take(BudgetKeys::depth_cost)),
        step: budget::read_step(&fields.take(BudgetKeys::step)),
    };
    fields.finish();
    budgets
}

/// Checks that what the budgets limit is measured, and that a depth may have an eval.
pub(super) fn check(
    field: &Field<'_>,
    budgets: &SearchBudgets,
    commands: &SearchCommands,
    servers: Option<&GatewaySpec>,
    search: &SearchSettings,
) {
    let agents = || commands.named().filter_map(|(_, command)| command.agent.as_ref());
    if let Some(step) = &budgets.step {
        if agents().next().is_none() {
            let found = "`step`, without an agent that does a command";
            field.reject(ErrorKind::Conflict, found, "`agent` in a command, or no such limit");
        }
        let models = agents().filter_map(|agent| agent.spec.model.as_ref());
        let models: Vec<_> =
            models.map(|model| (model.upstream.as_str(), model.name.as_str())).collect();
        let config = budget::BudgetConfig { each_try: Some(*step), ..Default::default() };
        budget::check(field, &config, servers, &models);
    }
    let Some(most) = budgets.depth_cost else { return };
    let Some(attempt) = budgets.max_attempt_cost(commands) else {
        let found =
            "`depth_cost` without `step.cost`, or without an agent for `implement` or `review`";
        let expected = "both: the evals of a depth are planned by the most that each may cost";
        return field.reject(ErrorKind::Conflict, found, expected);
    };
    let of_ideas = |command: &SearchCommand| match (&command.agent, budgets.step) {
        (Some(_), Some(step)) => step.limits.cost.unwrap_or(0.0) * f64::from(search.beam_width),
        _ => 0.0,
    };
    let least =
        of_ideas(&commands.ideas) + attempt * f64::from(search.eval_retries.saturating_add(1));
    // Sums of decimal fractions are not exact.
    if most + 1e-9 < least {
        let found =
            format!("`depth_cost` {most}, less than the ideas of a depth and one eval may cost");
        field.reject(ErrorKind::Conflict, found, format!("at least {least:.6}"));
    }
}
