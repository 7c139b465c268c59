//! `tree.html`: the drawing and a table, in one file that needs nothing else.

use std::fmt::Write as _;

use super::super::manifest::Manifest;
use super::best::{best_path, standing};
use super::svg::{escaped, svg};
use super::{idea_name, number, verdict};

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
td.number { text-align: right; font-variant-numeric: tabular-nums }
";

const KEY: &str = "Large circles are nodes: green is better than the root, red is worse, a blue rim \
                   is on the best path. Small ones are ideas that were not promoted; point at one \
                   to see why.";

/// The page.
pub fn html(manifest: &Manifest) -> String {
    let name = escaped(&manifest.tree_run_id);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Search {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>Search {name}</h1>\n<p>{}</p>\n<div class=\"tree\">\n{}</div>\n<p class=\"key\">{KEY}</p>\n",
        escaped(&sentence(manifest)),
        svg(manifest)
    );
    way(manifest, &mut page);
    evals(manifest, &mut page);
    page.push_str("</body>\n</html>\n");
    page
}

fn sentence(manifest: &Manifest) -> String {
    let promoted = manifest.nodes.len().saturating_sub(1);
    let best = best_path(manifest).last().and_then(|id| standing(manifest, *id));
    format!(
        "{} ideas tried, {promoted} promoted, best score against the root {}.",
        manifest.evaluations.len(),
        number(best.map(|(score, _)| score))
    )
}

fn way(manifest: &Manifest, page: &mut String) {
    page.push_str("<h2>Best path</h2>\n<ol>\n");
    for id in best_path(manifest) {
        let node = manifest.node(id);
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let (idea, commit) = (escaped(idea), escaped(&node.commit));
        let _infallible = writeln!(page, "<li>{id} {idea} <code>{commit}</code></li>");
    }
    page.push_str("</ol>\n");
}

fn evals(manifest: &Manifest, page: &mut String) {
    page.push_str(
        "<h2>Ideas</h2>\n<table>\n<tr><th>eval</th><th>depth</th><th>parent</th><th>idea</th>\
         <th class=\"number\">score</th><th class=\"number\">primary</th><th>outcome</th></tr>\n",
    );
    for eval in manifest.evaluations.values() {
        let rank = eval.decision.as_ref().and_then(|decision| decision.rank_score);
        let primary = eval.parent_relative.as_ref().and_then(|view| view.primary_delta);
        let _infallible = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td>{}</td></tr>",
            eval.eval_id,
            eval.depth,
            eval.parent_node_id,
            escaped(idea_name(&eval.idea_path)),
            number(rank),
            number(primary),
            escaped(&verdict(eval))
        );
    }
    page.push_str("</table>\n");
}
