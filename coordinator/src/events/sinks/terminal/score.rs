//! Rendering of verdicts, failures and headlines as text.

use std::collections::BTreeSet;

use rollout_protocol::record::Verdict;

use super::format::{number, number_or_dash, percent, plural};
use crate::results::escape;
use crate::results::metrics::FailureCounts;
use crate::results::report::{AgentSummary, JobResult, ScoreFigures, TrialSummary};

/// Share of trials without an answer of a model server from which an agent is named: a server that
/// fails now and then stays below.
const UNREACHABLE_SHARE: f64 = 0.1;

/// Maximum number of rewards shown for one trial.
const MAX_REWARDS_SHOWN: usize = 8;

/// The rewards of a trial, and the reason why it has none or did not pass.
pub(super) fn verdict(verdict: &Verdict) -> String {
    let mut parts = Vec::new();
    if let Some(reward) = verdict.reward {
        parts.push(format!("reward {}", number(reward)));
    }
    if !verdict.rewards.is_empty() {
        parts.push(rewards(verdict));
    }
    if !verdict.unverified_steps.is_empty() {
        let steps = verdict.unverified_steps.join(", ");
        parts.push(format!("not passed: step not verified: {steps}"));
    }
    parts.extend(verdict.error.as_ref().map(ToString::to_string));
    parts.extend(verdict.format_doubt.map(|doubt| format!("format in doubt: {}", doubt.as_str())));
    parts.join("; ")
}

fn rewards(verdict: &Verdict) -> String {
    let shown = verdict.rewards.iter().take(MAX_REWARDS_SHOWN);
    let mut shown: Vec<String> =
        shown.map(|(key, reward)| format!("{key} {}", number(*reward))).collect();
    let hidden = verdict.rewards.len() - shown.len();
    if hidden > 0 {
        shown.push(format!("{hidden} more"));
    }
    format!("rewards: {}", shown.join(", "))
}

/// The agents that got no answer of a model server in many of their trials. The cause may be the
/// agent, which then has no verdicts.
pub(super) fn unreachable(result: &JobResult) -> Vec<String> {
    let is_named = |agent: &AgentSummary| {
        let settled = agent.total_trials.saturating_sub(agent.skipped_trials);
        let count = agent.model_unreachable_trials;
        count > 0 && count as f64 >= UNREACHABLE_SHARE * settled as f64
    };
    let agents = result.agents.0.iter().filter(|(_, agent)| is_named(agent));
    agents
        .map(|(name, agent)| {
            format!(
                "a model server did not answer `{}` in {} of {}: check the server, and whether the \
                 agent provokes its errors",
                escape::line(name),
                agent.model_unreachable_trials,
                plural(agent.total_trials, "trial"),
            )
        })
        .collect()
}

/// The agents that could not be installed in some trials. The cause may be the agent, which then has no
/// verdicts.
pub(super) fn not_installed(result: &JobResult) -> Vec<String> {
    let agents = result.agents.0.iter().filter(|(_, agent)| agent.not_installed_trials > 0);
    agents
        .map(|(name, agent)| {
            format!(
                "`{}` could not be installed in {} of {}: check its registry, the images, and whether \
                 its packages end the installation",
                escape::line(name),
                agent.not_installed_trials,
                plural(agent.total_trials, "trial"),
            )
        })
        .collect()
}

/// The line about trials whose verdict the guessed format of the task decides, if there are any.
pub(super) fn format_doubt(result: &JobResult) -> Option<String> {
    let count = result.headline.format_doubt_trials;
    (count > 0).then(|| {
        format!(
            "{} could have another verdict in the other format of their task, which is a guess: run \
             `rollout check` for the reason, and write `format` in task.toml",
            plural(count, "trial")
        )
    })
}

/// The line about completed trials whose verifier gave several numbers and no reward, if there are any.
pub(super) fn without_reward(result: &JobResult) -> Option<String> {
    let is_without = |trial: &&TrialSummary| trial.reward.is_none() && !trial.rewards.0.is_empty();
    let trials: Vec<&TrialSummary> = result.results.iter().filter(is_without).collect();
    let keys = trials.iter().flat_map(|trial| trial.rewards.0.iter());
    let keys: BTreeSet<&str> = keys.map(|(key, _)| key.as_str()).collect();
    let mut shown: Vec<String> =
        keys.iter().take(MAX_REWARDS_SHOWN).map(|key| escape::line(key).into_owned()).collect();
    if keys.len() > shown.len() {
        shown.push(format!("{} more", keys.len() - shown.len()));
    }
    (!trials.is_empty()).then(|| {
        format!(
            "no reward in {}: its verifier gave {}; `verifier.reward_key` or `--reward-key` has to name \
             one of these, the number that counts",
            plural(trials.len() as u64, "trial"),
            shown.join(", ")
        )
    })
}

/// The line about model calls without the token ids that the job asks for, if there are any.
pub(super) fn without_token_ids(result: &JobResult) -> Option<String> {
    let count = result.model_use.calls_without_ids;
    (count > 0).then(|| {
        format!(
            "no token ids in {count} of {}, although the server is to give them (`capture: tokens`): nothing \
             can be trained on them",
            plural(result.model_use.calls, "model call"),
        )
    })
}

/// `3 failed`, with the number of failures that do not count; `before_agent` are those of tasks.
pub(super) fn failed(count: u64, failures: &FailureCounts, before_agent: u64) -> String {
    let kinds = [
        (failures.infrastructure, "infrastructure"),
        (before_agent, "task before the agent"),
        (failures.unsupported, "unsupported"),
    ];
    let kinds: Vec<String> = (kinds.iter().filter(|(count, _)| *count > 0))
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if kinds.is_empty() {
        return format!("{count} failed");
    }
    format!("{count} failed ({})", kinds.join(", "))
}

/// `passed 3 of 4 (75%), mean reward 0.75`: the score of a run, wherever people see it. The bounds of
/// the pass rate follow it where failures do not count.
pub(crate) fn scored(figures: &ScoreFigures) -> String {
    let passed = passed(figures.passed, figures.trials, figures.pass_rate);
    format!("{passed}{}, {}", bounds(figures), mean(figures.mean_reward))
}

/// `, 60% to 80% with the failures that do not count`; empty where there are none.
fn bounds(figures: &ScoreFigures) -> String {
    let (low, high) = (figures.pass_rate_low, figures.pass_rate_high);
    if low >= high {
        return String::new();
    }
    format!(", {} to {} with the failures that do not count", percent(low), percent(high))
}

fn mean(mean: Option<f64>) -> String {
    format!("mean reward {}", number_or_dash(mean))
}

/// `passed 3 of 4 (75%)`.
pub(super) fn passed(passed: u64, trials: u64, rate: Option<f64>) -> String {
    match rate {
        Some(_) => format!("passed {passed} of {trials} ({})", percent(rate)),
        None => "passed 0 of 0".to_owned(),
    }
}

/// Whether trials completed, and their score is not the score of the run.
pub(super) fn has_own_completed_score(result: &JobResult) -> bool {
    result.completed_trials > 0 && result.headline.scored.trials != result.completed_trials
}

/// The headline of a run: the score, the score over completed trials only if it differs, and the
/// number of trials that do not count.
pub(super) fn headline(result: &JobResult) -> Vec<String> {
    let mut lines = vec![scored(&result.headline.scored)];
    if has_own_completed_score(result) {
        lines.push(format!(
            "of the {} completed: {} passed, {}",
            result.completed_trials,
            percent(result.pass_rate),
            mean(result.mean_reward)
        ));
    }
    let failures = &result.headline.failures;
    let infrastructure = plural(failures.infrastructure, "infrastructure failure");
    let before_agent = result.headline.task_failures_before_agent;
    let of_tasks = format!("{} before the agent began", plural(before_agent, "task failure"));
    let uncounted: Vec<String> = [
        (failures.infrastructure, infrastructure),
        (before_agent, of_tasks),
        (failures.unsupported, format!("{} unsupported", failures.unsupported)),
        (result.unverified_trials, format!("{} unverified", result.unverified_trials)),
        (result.cancelled_trials, format!("{} cancelled", result.cancelled_trials)),
        (result.skipped_trials, format!("{} skipped", result.skipped_trials)),
    ]
    .into_iter()
    .filter_map(|(count, text)| (count > 0).then_some(text))
    .collect();
    if !uncounted.is_empty() {
        lines.push(format!(
            "not counted, of {}: {}",
            plural(result.total_trials, "trial"),
            uncounted.join(", ")
        ));
    }
    lines
}
