//! `TREE_GRAPH.md`: the nodes and rejected evals as a Mermaid diagram.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::super::manifest::SearchManifest;
use super::best::{best_path, root_comparison};
use super::outcome::outcome;
use super::{idea_name, number};

/// The graph as Markdown with a Mermaid block.
pub fn graph(manifest: &SearchManifest) -> String {
    let mut text = "# Tree\n\nNumbers are scores against the results of the root.\n\n\
                    ```mermaid\nflowchart TD\n"
        .to_owned();
    let best: BTreeSet<_> = best_path(manifest).into_iter().collect();
    for (id, node) in &manifest.nodes {
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let score = root_comparison(manifest, *id)
            .map(|(score, _)| format!("<br/>root {}", number(Some(score))));
        let score = score.unwrap_or_default();
        let _infallible = writeln!(text, "  n{id}[\"{id} {}{score}\"]", label(idea));
        if let Some(parent) = node.parent_node_id {
            let _infallible = writeln!(text, "  n{parent} --> n{id}");
        }
    }
    let rejected = manifest.evaluations.values().filter(|eval| {
        eval.decision.as_ref().is_none_or(|decision| decision.promoted_to_node_id.is_none())
    });
    for eval in rejected {
        let (id, parent) = (eval.eval_id, eval.parent_node_id);
        let idea = label(idea_name(&eval.idea_path));
        let _infallible = writeln!(text, "  e{id}([\"{idea}<br/>{}\"])", label(&outcome(eval)));
        let _infallible = writeln!(text, "  n{parent} -.-> e{id}");
    }
    text.push_str("  classDef best stroke-width:3px\n");
    let names: Vec<_> = best.iter().map(|id| format!("n{id}")).collect();
    let _infallible = writeln!(text, "  class {} best\n```", names.join(","));
    text
}

/// Text that cannot end a label or act as markup in one.
fn label(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '.' | '-' | '_' | '/' | ':');
    text.chars().map(|c| if plain(c) { c } else { '?' }).take(60).collect()
}
