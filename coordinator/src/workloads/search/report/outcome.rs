//! The outcome of an eval, and the reason for it.

use std::fmt::Write as _;

use rollout_protocol::limits::shorten;

use super::super::manifest::{Reason, SearchEval, SearchManifest};
use super::relative::signed;

/// Maximum length of a reason in bytes.
const MAX_REASON_BYTES: usize = 600;

/// The outcome of an eval, in a few words.
pub(super) fn outcome(eval: &SearchEval) -> String {
    let Some(decision) = &eval.decision else {
        let status = serde_json::to_value(eval.status).unwrap_or_default();
        let status = status.as_str().unwrap_or_default().replace('_', " ");
        return with_error(format!("{status}, not decided"), eval);
    };
    if let Some(node) = decision.promoted_to_node_id {
        let warned = if eval.results_warning.is_some() { ", with a warning" } else { "" };
        return format!("promoted to {node}{warned}");
    }
    let reason = decision.promotion_reason.unwrap_or(Reason::BeyondBeam);
    with_error(reason.to_string(), eval)
}

fn with_error(words: String, eval: &SearchEval) -> String {
    match &eval.error {
        Some(error) => format!("{words}: {}", error.error_type),
        None => words,
    }
}

/// The reason of a decision in detail, if more is known than the name of the reason, with a warning of
/// the results. Equal evals have equal reasons.
pub fn decision_reason(manifest: &SearchManifest, eval: &SearchEval) -> Option<String> {
    let why = reason_of_decision(manifest, eval);
    let Some(warning) = &eval.results_warning else { return why };
    let text = why.map_or_else(|| warning.clone(), |why| format!("{why}; warning: {warning}"));
    Some(shorten(text, MAX_REASON_BYTES))
}

fn reason_of_decision(manifest: &SearchManifest, eval: &SearchEval) -> Option<String> {
    if let Some(error) = &eval.error {
        return Some(shorten(error.message.clone(), MAX_REASON_BYTES));
    }
    let decision = eval.decision.as_ref()?;
    let config = &manifest.run_config;
    let column = &config.scoring_profile.primary.column;
    let parent = eval.parent_relative.as_ref();
    let summary = parent.and_then(|view| view.recommendation_summary.as_ref());
    let used = parent.map_or(0, |view| view.candidate_rows_used);
    let why = match decision.promotion_reason? {
        Reason::NoChanges => "the idea made no change that a commit can contain".to_owned(),
        Reason::PrimaryRegressed => {
            let delta = signed(parent.and_then(|view| view.primary_delta));
            format!("`{column}` {delta} against the parent")
        }
        Reason::MissingPrimaryDelta => {
            format!("`{column}` is missing in the candidate or the parent")
        }
        Reason::IncompleteRows => rows(eval),
        Reason::RowsUsedMismatch => format!("{used} rows were used"),
        Reason::TooFewRows => {
            format!("{used} rows were used, but at least {} are needed", config.min_candidate_rows)
        }
        Reason::OkRateTooLow => {
            format!("{}, but at least a share of {} is needed", rows(eval), config.min_ok_rate)
        }
        Reason::NotWorthExploring | Reason::WorthExploring | Reason::MixedNotRegressed => {
            let summary = summary?;
            let mut text = format!("against the parent: {}, score ", summary.grade);
            let _infallible = write!(text, "{}", signed(Some(summary.score)));
            if !summary.reasons.is_empty() {
                let _infallible = write!(text, ", {}", summary.reasons.join(", "));
            }
            text
        }
        Reason::BeyondBeam => {
            let (depth, kept) = (eval.depth, config.beam_width);
            format!("only the best {kept} of depth {depth} are promoted, by score against the root")
        }
        Reason::Unranked => {
            format!("neither a score nor a difference of `{column}` against the root")
        }
        _ => return None,
    };
    Some(shorten(why, MAX_REASON_BYTES))
}

fn rows(eval: &SearchEval) -> String {
    let Some(rows) = eval.strict_completeness else { return "the rows are unknown".to_owned() };
    let (ok, unique) = (rows.ok_count, rows.observed_unique_config_ids);
    match rows.expected_count {
        Some(expected) => format!(
            "{ok} rows succeeded and {} did not, of {unique} configurations; {expected} are \
             expected",
            rows.error_count
        ),
        None => format!("{ok} of {} rows succeeded", ok + rows.error_count),
    }
}
