//! `budget`: what model calls may use, of each try, of each agent and of the run.

use rollout_protocol::spec::budget::{BudgetLimits, DEFAULT_OUTPUT_RESERVE, RunBudget, TryBudget};
use rollout_protocol::spec::gateway::GatewaySpec;

use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};

keys! {
    /// The keys of `budget`.
    pub(crate) table BudgetKeys {
        each_try as "try": Value("table"), "no limits", "What the model calls of each try of a trial may use.",
            "try" => LimitKeys::ALL;
        agent: Value("table"), "no limits", "What those of all trials of each agent may use.",
            "agent" => LimitKeys::ALL;
        run: Value("table"), "no limits", "What those of the whole run may use.", "run" => LimitKeys::ALL;
        output_reserve: Value("integer"), "4096",
            "Output tokens that a call reserves before it is sent, if it does not ask for fewer.";
    }

    /// The key of a step's budget beside its limits.
    pub(crate) table StepReserveKeys {
        output_reserve: Value("integer"), "4096",
            "Output tokens that a call reserves before it is sent, if it does not ask for fewer.";
    }

    /// The limits of a budget.
    pub(crate) table LimitKeys {
        cost: Value("number"), "no limit", "Cost of the tokens, in the currency of the prices.";
        tokens: Value("integer"), "no limit", "Input and output tokens.";
        calls: Value("integer"), "no limit", "Calls.";
        sec: Value("number"), "no limit", "Time in which calls are open, s; that of concurrent calls adds up.";
    }
}

/// Largest counts: far above any run, so that typing errors are found.
const MAX_COUNT: u64 = 1_000_000_000_000_000;

/// The budgets of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BudgetConfig {
    /// Of each try.
    pub each_try: Option<TryBudget>,
    /// Of the run and of its agents.
    pub run: RunBudget,
}

/// Reads the budgets.
pub(crate) fn read(field: &Field<'_>) -> BudgetConfig {
    let Some(mut fields) = field.mapping() else { return BudgetConfig::default() };
    let each_try = limits(&fields.take(BudgetKeys::each_try));
    let (agent, run) = (fields.take(BudgetKeys::agent), fields.take(BudgetKeys::run));
    let reserve = fields.take(BudgetKeys::output_reserve).integer(&(0..=MAX_COUNT));
    let output_reserve = reserve.unwrap_or(DEFAULT_OUTPUT_RESERVE);
    let budget = RunBudget { run: limits(&run), agent: limits(&agent), each_try };
    check_shares(&run, &budget.run, &each_try);
    check_shares(&agent, &budget.agent, &each_try);
    fields.finish();
    let each_try =
        (!each_try.is_unlimited()).then_some(TryBudget { limits: each_try, output_reserve });
    BudgetConfig { each_try, run: budget }
}

/// Reads the limits of each step of a search that an agent does.
pub(crate) fn read_step(field: &Field<'_>) -> Option<TryBudget> {
    let mut fields = field.mapping()?;
    let limits = take_limits(&mut fields);
    let reserve = fields.take(StepReserveKeys::output_reserve).integer(&(0..=MAX_COUNT));
    fields.finish();
    let output_reserve = reserve.unwrap_or(DEFAULT_OUTPUT_RESERVE);
    (!limits.is_unlimited()).then_some(TryBudget { limits, output_reserve })
}

fn limits(field: &Field<'_>) -> BudgetLimits {
    let Some(mut fields) = field.mapping() else { return BudgetLimits::default() };
    let limits = take_limits(&mut fields);
    fields.finish();
    limits
}

fn take_limits(fields: &mut Fields<'_>) -> BudgetLimits {
    let expected = "a number above 0, at most 1e9";
    let is_amount = |amount: f64| amount > 0.0 && amount <= 1e9;
    BudgetLimits {
        cost: fields.take(LimitKeys::cost).number(expected, is_amount),
        tokens: fields.take(LimitKeys::tokens).integer(&(1..=MAX_COUNT)),
        calls: fields.take(LimitKeys::calls).integer(&(1..=MAX_COUNT)),
        sec: fields.take(LimitKeys::sec).number(expected, is_amount),
    }
}

/// Checks that a budget can be divided into those of tries: a trial begins only if what is left
/// covers the whole budget of a try.
fn check_shares(field: &Field<'_>, whole: &BudgetLimits, part: &BudgetLimits) {
    let pairs = [
        ("cost", whole.cost, part.cost),
        ("tokens", whole.tokens.map(|n| n as f64), part.tokens.map(|n| n as f64)),
        ("calls", whole.calls.map(|n| n as f64), part.calls.map(|n| n as f64)),
        ("sec", whole.sec, part.sec),
    ];
    for (name, whole, part) in pairs {
        let Some(whole) = whole else { continue };
        let (found, expected) = match part {
            None => (
                format!("a limit of `{name}` without one for each try"),
                format!("`budget.try.{name}`: a trial begins only if what is left covers it"),
            ),
            Some(part) if part > whole => (
                format!("{name} {whole}, less than the {part} of one try"),
                format!("at least `budget.try.{name}`"),
            ),
            Some(_) => continue,
        };
        field.reject(ErrorKind::Conflict, found, expected);
    }
}

/// Checks that what the budgets limit is measured: calls go through the gateway, and a limit on
/// money needs prices. `models` are those that agents name, each with its server.
pub(crate) fn check(
    field: &Field<'_>,
    budget: &BudgetConfig,
    gateway: Option<&GatewaySpec>,
    models: &[(&str, &str)],
) {
    let Some(each_try) = budget.each_try else { return };
    let Some(gateway) = gateway else {
        let expected = "agents with a `model`, or `gateway`: only its calls are measured";
        return field.reject(ErrorKind::Conflict, "a budget without model servers", expected);
    };
    if each_try.limits.cost.is_none() {
        return;
    }
    let expected = "`prices` at its server in `gateway.upstreams[]`, or a file of `prices` with it";
    for upstream in &gateway.upstreams {
        let is_named = models.iter().any(|(server, _)| *server == upstream.name);
        let of_server = models.iter().filter(|(server, _)| *server == upstream.name);
        for (_, model) in of_server.filter(|(_, model)| upstream.prices_of([*model]).is_none()) {
            let found = format!("a limit of cost, and the model `{model}` without a price");
            field.reject(ErrorKind::Conflict, found, expected);
        }
        if !is_named && upstream.prices.is_none() && upstream.model_prices.is_empty() {
            let found =
                format!("a limit of cost, and the model server `{}` without prices", upstream.name);
            field.reject(ErrorKind::Conflict, found, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn budgets_are_read_with_the_share_of_a_try() {
        let text = "{try: {cost: 1.5, calls: 40}, agent: {calls: 400}, run: {cost: 30}}";
        let (budget, faults, _) = read_field(text, read);
        assert_eq!(faults, []);
        let each_try = budget.each_try.expect("a budget of tries");
        assert_eq!((each_try.limits.cost, each_try.limits.calls), (Some(1.5), Some(40)));
        assert_eq!(each_try.output_reserve, DEFAULT_OUTPUT_RESERVE);
        assert_eq!(budget.run.each_try, each_try.limits);
        assert_eq!((budget.run.run.cost, budget.run.agent.calls), (Some(30.0), Some(400)));
        assert_eq!(read_field("~", read).0, BudgetConfig::default());
    }

    #[test]
    fn budget_that_cannot_be_divided_into_tries_is_an_error() {
        let errors = |text: &str| {
            let faults = read_field(text, read).1;
            faults.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(errors("{run: {cost: 30}}"), ["x.run"]);
        assert_eq!(errors("{try: {tokens: 11}, agent: {tokens: 10}}"), ["x.agent"]);
        assert_eq!(errors("{try: {cost: 0}}"), ["x.try.cost"]);
        assert_eq!(errors("{try: {calls: 1, money: 2}}"), ["x.try.money"]);
    }
}
