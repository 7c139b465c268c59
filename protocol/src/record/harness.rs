//! The result of a harness, in the record of a trial and in its report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TrialRecord;
use crate::blob::BlobRef;
use crate::harness::{
    HarnessControl, HarnessOutcome, HookViolations, IntegrationLevel, MetricValue, Objective,
    OutputError,
};
use crate::limits;

/// The result of a harness. It never decides the reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HarnessRecord {
    /// How much of the contract the harness implements, according to the job.
    pub integration_level: IntegrationLevel,
    /// How the attempt ended, according to the harness.
    pub outcome: HarnessOutcome,
    /// Where the output came from.
    pub output_source: OutputSource,
    /// The number to compare by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Metrics within the limits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, MetricValue>,
    /// Number of metrics beyond the limits.
    #[serde(default)]
    pub metrics_left_out: u64,
    /// The error of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<OutputError>,
    /// The output document.
    #[serde(default)]
    pub output: Option<BlobRef>,
    /// The events; absent if the job names no file for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<HarnessEvents>,
    /// Controls that were requested while the command ran, at most [`limits::HARNESS_CONTROLS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<HarnessControl>,
}

/// Where the output of a harness came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSource {
    /// The output file.
    File,
    /// The last line of the standard output.
    LastLine,
    /// The worker: the harness left no valid output.
    Synthesized,
}

/// The events of a harness.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessEvents {
    /// The file.
    #[serde(default)]
    pub log: Option<BlobRef>,
    /// Valid events.
    pub total: u64,
    /// Valid events by type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// Violations of the rules of the stream.
    #[serde(default)]
    pub violations: HookViolations,
}

/// The result of a harness in numbers: part of the report and of the settlement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HarnessSummary {
    /// How much of the contract the harness implements, according to the job.
    pub integration_level: IntegrationLevel,
    /// How the attempt ended, according to the harness.
    pub outcome: HarnessOutcome,
    /// The number to compare by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Metrics that fit: numbers and truth values first, then texts, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, MetricValue>,
    /// Number of other metrics. Some of them may be in the record.
    #[serde(default)]
    pub metrics_left_out: u64,
    /// Its events; absent if the job names no file for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<HarnessEventCounts>,
}

/// The events of a harness in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessEventCounts {
    /// Valid events.
    pub total: u64,
    /// Valid events by type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// Number of violations of the rules of the stream.
    pub violations: u64,
}

/// The log of hook events of one step of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepEventLog<'a> {
    /// Index of the step, from 0.
    pub step: u32,
    /// Its name; `None` for a task without steps of its own.
    pub name: Option<&'a str>,
    /// The log.
    pub log: &'a BlobRef,
}

impl TrialRecord {
    /// The logs of hook events that were kept, in the order of the steps.
    pub fn event_logs(&self) -> Vec<StepEventLog<'_>> {
        if self.steps.is_empty() {
            let log = self.harness.as_deref().and_then(HarnessRecord::event_log);
            return log.map(|log| StepEventLog { step: 0, name: None, log }).into_iter().collect();
        }
        let steps = (0..).zip(&self.steps);
        steps
            .filter_map(|(step, run)| {
                let log = run.harness.as_deref().and_then(HarnessRecord::event_log)?;
                Some(StepEventLog { step, name: Some(run.name.as_str()), log })
            })
            .collect()
    }
}

impl HarnessRecord {
    /// Its log of hook events, if it was kept.
    fn event_log(&self) -> Option<&BlobRef> {
        self.events.as_ref()?.log.as_ref()
    }

    /// The numbers for the report, encoded in at most [`limits::HARNESS_SUMMARY_BYTES`].
    pub fn summary(&self) -> HarnessSummary {
        let events = self.events.as_ref().map(|events| HarnessEventCounts {
            total: events.total,
            counts: events.counts.clone(),
            violations: events.violations.total,
        });
        let mut summary = HarnessSummary {
            integration_level: self.integration_level,
            outcome: self.outcome,
            objective: self.objective.clone(),
            metrics: BTreeMap::new(),
            // Written with as many digits as it can ever have.
            metrics_left_out: u64::MAX,
            events,
        };
        let mut length = encoded_length(&summary) + ",\"metrics\":{}".len();
        let is_text = |value: &MetricValue| matches!(value, MetricValue::Text(_));
        let (texts, numbers): (Vec<_>, Vec<_>) =
            self.metrics.iter().partition(|(_, value)| is_text(value));
        for (name, value) in numbers.into_iter().chain(texts) {
            let more = encoded_length(name) + encoded_length(value) + ":,".len();
            if length + more <= limits::HARNESS_SUMMARY_BYTES {
                length += more;
                summary.metrics.insert(name.clone(), value.clone());
            }
        }
        let cut = (self.metrics.len() - summary.metrics.len()) as u64;
        summary.metrics_left_out = self.metrics_left_out.saturating_add(cut);
        summary
    }
}

fn encoded_length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).expect("it has only text keys").len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::HookEventType;
    use proptest::prelude::*;

    fn record(metrics: BTreeMap<String, MetricValue>) -> HarnessRecord {
        let counts = HookEventType::NAMES.iter().map(|(name, _)| ((*name).to_owned(), u64::MAX));
        let direction = Some(crate::harness::ObjectiveDirection::Maximize);
        let name = "\"".repeat(limits::HARNESS_NAME_BYTES);
        HarnessRecord {
            integration_level: IntegrationLevel::SdkControl,
            outcome: HarnessOutcome::Success,
            output_source: OutputSource::File,
            objective: Some(Objective { name, value: f64::MIN, direction }),
            metrics,
            metrics_left_out: 3,
            error: None,
            output: None,
            controls: Vec::new(),
            events: Some(HarnessEvents { counts: counts.collect(), ..HarnessEvents::default() }),
        }
    }

    #[test]
    fn harness_summary_keeps_numbers_before_texts() {
        let text = || MetricValue::Text("t".repeat(limits::HARNESS_TEXT_BYTES));
        let texts = (0..20).map(|n| (format!("a{n}"), text()));
        let numbers = (0..20).map(|n| (format!("z{n}"), MetricValue::Number(f64::from(n))));
        let summary = record(texts.chain(numbers).collect()).summary();
        let kept = |first: char| summary.metrics.keys().filter(move |name| name.starts_with(first));
        assert_eq!(kept('z').count(), 20, "{summary:?}");
        assert!((1..20).contains(&kept('a').count()), "{summary:?}");
        assert_eq!(summary.metrics.len() as u64 + summary.metrics_left_out, 43);
    }

    proptest! {
        #[test]
        fn harness_summary_is_within_its_limit(
            names in proptest::collection::btree_set("[a-z\"\\\\\\PC]{1,40}", 0..64),
            text in "[a-z\"\\\\\\PC]{0,80}",
            number in any::<f64>().prop_filter("finite", |number| number.is_finite()),
        ) {
            let value = |n: usize| match n % 3 {
                0 => MetricValue::Text(text.clone()),
                1 => MetricValue::Number(number),
                _ => MetricValue::Null,
            };
            let metrics: BTreeMap<_, _> =
                names.into_iter().enumerate().map(|(n, name)| (name, value(n))).collect();
            let record = record(metrics);
            let summary = record.summary();
            prop_assert!(encoded_length(&summary) <= limits::HARNESS_SUMMARY_BYTES);
            prop_assert_eq!(
                summary.metrics.len() as u64 + summary.metrics_left_out,
                record.metrics.len() as u64 + 3
            );
            let text = serde_json::to_string(&summary).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<HarnessSummary>(&text).expect("read"), summary);
        }
    }
}
