//! Ideas and their outcomes as text for the generator of ideas.

use std::fmt::Write as _;

use rollout_protocol::limits::shorten;

use super::super::SearchDirectory;
use crate::workloads::search::manifest::{ComparisonSummary, SearchEval, SearchManifest};
use rollout_protocol::search::NodeId;

/// Maximum title of an idea in bytes.
const MAX_TITLE_BYTES: usize = 160;

/// Maximum text of one idea in bytes.
const MAX_IDEA_BYTES: usize = 16 * 1024;

/// Maximum text of all ideas in bytes.
const MAX_HISTORY_BYTES: usize = 256 * 1024;

/// Maximum text of one error in bytes.
const MAX_ERROR_BYTES: usize = 1024;

/// Maximum number of sibling ideas.
const MAX_SIBLINGS: usize = 200;

/// The ideas that led to a node, from the root. If the text is too long, the oldest are omitted.
pub(super) fn history(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    node: NodeId,
) -> String {
    let (mut parts, mut bytes, mut left_out) = (Vec::new(), 0, 0);
    let path = manifest.path_to(node);
    for id in path.iter().rev() {
        let eval = manifest.node(*id).promoted_from_eval_id;
        let Some(eval) = eval.and_then(|eval| manifest.evaluations.get(&eval)) else { continue };
        let part = step(directory, *id, eval);
        bytes += part.len();
        if bytes > MAX_HISTORY_BYTES {
            left_out += 1;
        } else {
            parts.push(part);
        }
    }
    let mut text = format!("# Ideas that led to node {node}\n");
    if left_out > 0 {
        writeln!(text, "\nThe first {left_out} are omitted.").expect(STRING_WRITE);
    }
    if parts.is_empty() && left_out == 0 {
        text.push_str("\nNone: this is the root.\n");
    }
    text.extend(parts.into_iter().rev());
    text
}

fn step(directory: &SearchDirectory, node: NodeId, eval: &SearchEval) -> String {
    let idea = idea(directory, eval);
    let mut text = format!("\n## Node {node}: {}\n\n", title(&idea));
    writeln!(text, "Eval {}, `{}`", eval.eval_id, plain(&eval.idea_path)).expect(STRING_WRITE);
    for (whose, view) in [("parent", &eval.parent_relative), ("root", &eval.root_relative)] {
        if let Some(view) = view {
            writeln!(text, "- against the {whose}: {}", outcome(view)).expect(STRING_WRITE);
        }
    }
    let quoted = idea.trim_end().lines();
    text.push('\n');
    for line in quoted {
        writeln!(text, "> {line}").expect(STRING_WRITE);
    }
    text
}

/// The ideas that were tried on the parent of a node and not promoted.
pub(super) fn siblings(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    node: NodeId,
) -> String {
    let mut text = format!("# Siblings of node {node} that were not promoted\n\n");
    let parent = manifest.node(node).parent_node_id;
    let evals = manifest.evaluations.values();
    let rejected = evals.filter(|eval| parent == Some(eval.parent_node_id)).filter_map(|eval| {
        let decision = eval.decision.as_ref()?;
        let reason = decision.promotion_reason?;
        decision.promoted_to_node_id.is_none().then_some((eval, reason))
    });
    let rejected: Vec<_> = rejected.collect();
    for (eval, reason) in rejected.iter().take(MAX_SIBLINGS) {
        let title = title(&idea(directory, eval));
        write!(text, "- {} (eval {}): {}", title, eval.eval_id, reason.as_str())
            .expect(STRING_WRITE);
        if let Some(error) = &eval.error {
            let message = shorten(plain(&error.message), MAX_ERROR_BYTES);
            write!(text, ": {}: {message}", error.error_type).expect(STRING_WRITE);
        }
        match &eval.parent_relative {
            Some(view) => writeln!(text, "; against the parent: {}", outcome(view)),
            None => writeln!(text),
        }
        .expect(STRING_WRITE);
    }
    match rejected.len() {
        0 => text.push_str("None.\n"),
        all if all > MAX_SIBLINGS => {
            writeln!(text, "\n{} more are omitted.", all - MAX_SIBLINGS).expect(STRING_WRITE);
        }
        _ => {}
    }
    text
}

/// Why writing to a string cannot fail.
const STRING_WRITE: &str = "writing to a string cannot fail";

fn outcome(view: &ComparisonSummary) -> String {
    let mut text = match &view.recommendation_summary {
        Some(found) => {
            let score = rounded(found.score);
            format!("{}, score {score}, {}", found.grade, found.reasons.join(", "))
        }
        None => "no score".to_owned(),
    };
    if let Some(delta) = view.primary_delta {
        write!(text, "; primary metric {:+}", rounded(delta)).expect(STRING_WRITE);
    }
    plain(&text)
}

/// A number with nine significant digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.8e}").parse().unwrap_or(number)
}

/// The text of an idea, shortened.
fn idea(directory: &SearchDirectory, eval: &SearchEval) -> String {
    let path = directory.resolve_below(&eval.idea_path);
    let content =
        path.and_then(|path| super::read_bounded(&path).ok().flatten()).unwrap_or_default();
    shorten(String::from_utf8_lossy(&content).into_owned(), MAX_IDEA_BYTES)
}

/// The first line of an idea, without markup.
fn title(idea: &str) -> String {
    let signs = |c: char| c.is_whitespace() || "#*->".contains(c);
    let lines = idea.lines().map(|line| line.trim_start_matches(signs).trim_end());
    let first = lines.into_iter().find(|line| !line.is_empty());
    shorten(plain(first.unwrap_or("an empty idea")), MAX_TITLE_BYTES)
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_with_float_noise_is_rounded() {
        for (number, shown) in [(0.1 + 0.2, "0.3"), (-1.0 / 3.0e6, "-0.000000333333333")] {
            assert_eq!(rounded(number).to_string(), shown);
        }
    }

    #[test]
    fn idea_title_is_first_line_without_markup() {
        for (idea, expected) in [
            ("# Cache it\n\nmore", "Cache it"),
            ("\n\n* **Bold** words\r\n", "Bold** words"),
            ("- a\tb", "a b"),
            ("\n  \n", "an empty idea"),
        ] {
            assert_eq!(title(idea), expected);
        }
        assert!(title(&"x".repeat(1000)).len() <= MAX_TITLE_BYTES);
    }
}
