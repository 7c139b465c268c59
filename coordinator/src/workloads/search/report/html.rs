//! `tree.html`: the drawing and a table, in one self-contained file.

use std::fmt::Write as _;

use super::super::manifest::{SearchEval, SearchManifest};
use super::best::{best_path, promoted_from, root_comparison};
use super::outcome::outcome;
use super::overview::OutcomeCounts;
use super::relative::{RelativeResults, signed};
use super::svg::{escaped, svg};
use super::{decision_reason, idea_name, legend, number, serialized_name};

const STYLE: &str = "
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
.tree { overflow-x: auto; border: 1px solid #8884; border-radius: 6px }
svg { display: block; margin: auto }
svg text { font: 11px system-ui, sans-serif; text-anchor: middle; fill: #111 }
svg .depth { text-anchor: start; fill: currentColor }
.key { font-size: .85rem; opacity: .8 }
.edge { stroke: #888; stroke-width: 1.5 }
.edge.best { stroke: #06c; stroke-width: 3.5 }
.node circle { stroke: #555; stroke-width: 1.5 }
.node.best circle { stroke: #06c; stroke-width: 3.5 }
.eval circle { fill: #bbb; stroke: #888 }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #8883 }
th.number { text-align: right }
th.group { border-bottom: none }
.why { font-size: .85rem; opacity: .8 }
.wide { overflow-x: auto }
td.number { text-align: right; font-variant-numeric: tabular-nums }
";

const LEGEND: &str = "Large circles are nodes: by their score against the root, green is better than the \
                   root and red is worse; a blue rim is on the best path. Small ones are ideas that \
                   were not promoted; point at one to see why.";

/// The page.
pub fn html(manifest: &SearchManifest) -> String {
    let name = escaped(&manifest.tree_run_id);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Search {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Search {name}</h1>\n<p>{}</p>\n<div class=\"tree\">\n{}</div>\n<p class=\"key\">{LEGEND}</p>\n",
        escaped(&sentence(manifest)),
        svg(manifest)
    );
    write_best_path(manifest, &mut page);
    evals(manifest, &mut page);
    page.push_str("</body>\n</html>\n");
    page
}

fn sentence(manifest: &SearchManifest) -> String {
    let promoted = manifest.nodes.len().saturating_sub(1);
    let best = best_path(manifest).last().and_then(|id| root_comparison(manifest, *id));
    format!(
        "Ideas tried: {}; {promoted} promoted; best score against the root {}. Ideas shown \
         to a generator: {}. {}",
        OutcomeCounts::from_manifest(manifest),
        number(best.map(|(score, _)| score)),
        serialized_name(manifest.run_config.ideas_context_strategy),
        legend(manifest)
    )
}

fn write_best_path(manifest: &SearchManifest, page: &mut String) {
    page.push_str("<h2>Best path</h2>\n<ol>\n");
    for id in best_path(manifest) {
        let node = manifest.node(id);
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let (idea, commit) = (escaped(idea), escaped(&node.commit));
        let results = escaped(&node.baseline_results_csv_path);
        let mut numbers = String::new();
        if let (Some((score, delta)), Some(eval)) =
            (root_comparison(manifest, id), promoted_from(manifest, id))
        {
            let parent = eval.parent_relative.as_ref().and_then(|view| view.primary_delta);
            numbers = format!(
                ": against the root score {}, primary {}; against the parent primary {}",
                number(Some(score)),
                signed(delta),
                signed(parent)
            );
        }
        let _infallible = writeln!(
            page,
            "<li>{id} {idea}{numbers}<br><code>{commit}</code>, results <code>{results}</code></li>"
        );
    }
    page.push_str("</ol>\n");
}

/// The table of all evals, with a group of columns for each baseline.
fn evals(manifest: &SearchManifest, page: &mut String) {
    page.push_str(
        "<h2>Ideas</h2>\n<div class=\"wide\">\n<table>\n<tr><th class=\"group\" colspan=\"4\"></th>\
         <th class=\"group\" colspan=\"4\">against the root</th>\
         <th class=\"group\" colspan=\"4\">against the parent</th>\
         <th class=\"group\" colspan=\"3\"></th></tr>\n\
         <tr><th>eval</th><th>depth</th><th>parent</th><th>idea</th>\
         <th class=\"number\">rank</th><th>grade</th><th>explore</th><th class=\"number\">primary</th>\
         <th>baseline</th><th>grade</th><th>explore</th><th class=\"number\">primary</th>\
         <th>outcome</th><th>commit</th><th>results</th></tr>\n",
    );
    for eval in manifest.evaluations.values() {
        page.push_str(&row(manifest, eval));
    }
    page.push_str("</table>\n</div>\n");
}

fn row(manifest: &SearchManifest, eval: &SearchEval) -> String {
    let rank = eval.decision.as_ref().and_then(|decision| decision.rank_score);
    let (root, parent) =
        (RelativeResults::to_root(manifest, eval), RelativeResults::to_parent(manifest, eval));
    let mut row = format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td>",
        eval.eval_id,
        eval.depth,
        eval.parent_node_id,
        escaped(idea_name(&eval.idea_path)),
        number(rank)
    );
    let of = |relative: &RelativeResults| {
        let [grade, explore, primary] = relative.cells();
        format!("<td>{grade}</td><td>{explore}</td><td class=\"number\">{primary}</td>")
    };
    let code = |text: Option<&str>| match text {
        Some(text) => format!("<td><code>{}</code></td>", escaped(text)),
        None => "<td>-</td>".to_owned(),
    };
    row.push_str(&of(&root));
    row.push_str(&code(Some(&parent.baseline_csv_path)));
    row.push_str(&of(&parent));
    let why = decision_reason(manifest, eval)
        .map(|why| format!("<div class=\"why\">{}</div>", escaped(&why)));
    let outcome = escaped(&outcome(eval));
    let _infallible = write!(row, "<td>{outcome}{}</td>", why.unwrap_or_default());
    let commit = eval.candidate_commit.as_deref().map(|commit| commit.get(..12).unwrap_or(commit));
    row.push_str(&code(commit));
    row.push_str(&code(eval.candidate_results_csv_path.as_deref()));
    row + "</tr>\n"
}
