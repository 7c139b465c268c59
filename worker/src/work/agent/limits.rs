//! The limits that an agent or a command of a search is told: variables, and a file that follows its clock.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use rollout_environment::{Environment, Failure, FailureKind, Upload};
use rollout_protocol::Timestamp;
use rollout_protocol::spec::budget::{BudgetLimits, TryBudget};
use serde::Serialize;
use tokio::sync::watch;

use crate::executor::{COPY_LIMIT, with_timeout};

/// Places of the file with the limits as they are now: the first one that the environment has room for.
const LIMITS_FILES: [&str; 2] = ["/rollout/limits.json", "/tmp/rollout-limits.json"];

/// Variable with the path of the file.
pub(super) const LIMITS_VARIABLE: &str = "ROLLOUT_LIMITS";

/// Pause before a file that could not be rewritten is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The limits of a script.
#[derive(Debug, Clone, Copy)]
pub(in crate::work) struct ToldLimits {
    /// Its time limit, if it has one.
    timeout: Option<Duration>,
    /// Its end at the earliest, in seconds since 1970, if it has one that can be written.
    deadline: Option<i64>,
    /// Budget of an agent's model calls.
    budget: BudgetLimits,
    /// Place of the file.
    path: &'static str,
}

/// The content of the file.
#[derive(Debug, Serialize)]
struct LimitsFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_sec: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: Option<i64>,
    #[serde(skip_serializing_if = "BudgetLimits::is_unlimited")]
    budget: BudgetLimits,
}

impl ToldLimits {
    /// The limits of a script that begins at `now`. `limit` is [`Duration::MAX`] for none.
    pub(in crate::work) fn new(
        limit: Duration,
        now: Timestamp,
        budget: Option<&TryBudget>,
    ) -> Self {
        let timeout = Some(limit).filter(|limit| *limit != Duration::MAX);
        let deadline = timeout.and_then(|limit| later(now.as_second(), limit));
        let budget = budget.map(|budget| budget.limits).unwrap_or_default();
        Self { timeout, deadline, budget, path: LIMITS_FILES[0] }
    }

    /// Variables that tell the script its limits. A wait for a service that does not answer, and a
    /// pause, make the end later than they say.
    pub(in crate::work) fn variables(&self) -> impl Iterator<Item = (String, String)> + use<> {
        let BudgetLimits { cost, tokens, calls, sec } = self.budget;
        let text = |number: Option<f64>| number.map(|number| number.to_string());
        let count = |number: Option<u64>| number.map(|number| number.to_string());
        [
            ("ROLLOUT_DEADLINE", self.deadline.map(|end| end.to_string())),
            ("ROLLOUT_TIMEOUT_SEC", text(self.timeout.map(|limit| limit.as_secs_f64()))),
            ("ROLLOUT_BUDGET_COST", text(cost)),
            ("ROLLOUT_BUDGET_TOKENS", count(tokens)),
            ("ROLLOUT_BUDGET_CALLS", count(calls)),
            ("ROLLOUT_BUDGET_SEC", text(sec)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    }

    /// Whether there is any limit.
    pub(super) const fn has_any(&self) -> bool {
        let BudgetLimits { cost, tokens, calls, sec } = self.budget;
        let is_paid = cost.is_some() || tokens.is_some() || calls.is_some() || sec.is_some();
        self.timeout.is_some() || is_paid
    }

    /// The file, after the clock has stood still for a time.
    fn file(&self, stood: Duration) -> Bytes {
        let content = LimitsFile {
            timeout_sec: self.timeout.map(|limit| limit.as_secs_f64()),
            deadline: self.deadline.and_then(|end| later(end, stood)),
            budget: self.budget,
        };
        let mut text = serde_json::to_vec(&content).expect("numbers can be written");
        text.push(b'\n');
        text.into()
    }

    /// The place of the file.
    pub(super) const fn path(&self) -> &'static str {
        self.path
    }

    /// Places the file for the first time. Returns the limits with its place; `None` if the environment
    /// has no room for it, such as an image with a file `/rollout`: no fault of the agent, which finds
    /// its limits in variables, too.
    pub(super) async fn place_first(
        self,
        environment: &dyn Environment,
    ) -> Result<Option<Self>, Failure> {
        for path in LIMITS_FILES {
            let told = Self { path, ..self };
            let Err(failure) = told.place(environment, Duration::ZERO).await else {
                return Ok(Some(told));
            };
            if !is_of_environment(failure.kind) {
                return Err(failure);
            }
            let (id, why) = (environment.id(), failure.chain());
            tracing::warn!("no room for the limits of a script at {path} in {id}: {why}");
        }
        Ok(None)
    }

    /// Places the file, after the clock has stood still for a time.
    async fn place(&self, environment: &dyn Environment, stood: Duration) -> Result<(), Failure> {
        let (path, bytes) = (self.path.to_owned(), self.file(stood));
        let placing = environment.copy_to(vec![Upload::File { path, bytes, executable: false }]);
        with_timeout(COPY_LIMIT, "placing them", placing).await
    }
}

/// Whether a file is refused for what the environment is or has in its place.
const fn is_of_environment(kind: FailureKind) -> bool {
    use FailureKind::{NotPermitted, Refused, StorageExceeded, Unsupported, Unusable};
    matches!(kind, NotPermitted | Refused | StorageExceeded | Unsupported | Unusable)
}

/// A time some seconds later, if it can be written.
fn later(second: i64, by: Duration) -> Option<i64> {
    second.checked_add(i64::try_from(by.as_secs()).ok()?)
}

/// Rewrites the file each time that the clock is found to have stood still for longer. Never ends.
pub(super) async fn keep_current(
    told: Option<ToldLimits>,
    environment: &dyn Environment,
    mut stood: watch::Receiver<Duration>,
) -> Infallible {
    let Some(told) = told.filter(|told| told.deadline.is_some()) else { return pending().await };
    while stood.changed().await.is_ok() {
        loop {
            let now = *stood.borrow_and_update();
            let Err(failure) = told.place(environment, now).await else { break };
            let (id, why) = (environment.id(), failure.chain());
            tracing::debug!("cannot rewrite the limits of a script in {id}: {why}");
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
    pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(limit: Duration, budget: Option<&TryBudget>) -> ToldLimits {
        ToldLimits::new(limit, Timestamp::from_second(1000).expect("a time"), budget)
    }

    #[test]
    fn limits_of_agent_are_in_variables_if_there_are_any() {
        let env = |limit, budget: Option<&TryBudget>| {
            let env = told(limit, budget).variables();
            env.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(env(Duration::MAX, None), [""; 0]);
        let limits = BudgetLimits { cost: Some(1.5), calls: Some(7), ..BudgetLimits::default() };
        let budget = TryBudget { limits, output_reserve: 0 };
        assert_eq!(
            env(Duration::from_secs_f64(90.5), Some(&budget)),
            [
                "ROLLOUT_DEADLINE=1090",
                "ROLLOUT_TIMEOUT_SEC=90.5",
                "ROLLOUT_BUDGET_COST=1.5",
                "ROLLOUT_BUDGET_CALLS=7",
            ]
        );
        let none = TryBudget { limits: BudgetLimits::default(), output_reserve: 0 };
        let most = Duration::from_secs(u64::MAX);
        assert_eq!(env(most, Some(&none)).len(), 1, "such an end cannot be written");
    }

    #[test]
    fn file_of_limits_has_end_after_time_that_clock_stood() {
        let limits = BudgetLimits { tokens: Some(500), ..BudgetLimits::default() };
        let budget = TryBudget { limits, output_reserve: 0 };
        let both = told(Duration::from_secs(90), Some(&budget));
        assert_eq!(
            both.file(Duration::from_secs_f64(60.9)),
            "{\"timeout_sec\":90.0,\"deadline\":1150,\"budget\":{\"tokens\":500}}\n"
        );
        let budget_only = told(Duration::MAX, Some(&budget));
        assert!(budget_only.has_any());
        assert_eq!(budget_only.file(Duration::ZERO), "{\"budget\":{\"tokens\":500}}\n");
        assert!(!told(Duration::MAX, None).has_any());
    }
}
