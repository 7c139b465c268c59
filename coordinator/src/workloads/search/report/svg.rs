//! The tree as a drawing: nodes by depth, scores by colour, the best path marked, rejected evals as
//! small circles with the reason as a tooltip.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::super::manifest::{SearchEval, SearchManifest};
use super::best::{best_path, promoted_from, root_comparison};
use super::outcome::outcome;
use super::relative::{RelativeResults, signed};
use super::{decision_reason, idea_name, number};
use rollout_protocol::search::{EvalId, NodeId};

/// Distance between leaves.
const NODE_SPACING: f64 = 46.0;

/// Distance between depths.
const DEPTH_SPACING: f64 = 110.0;

/// Space around the drawing.
const MARGIN: f64 = 70.0;

/// A child of a node in the drawing.
#[derive(Debug, Clone, Copy)]
enum DrawingChild {
    Node(NodeId),
    Eval(EvalId),
}

struct TreeDrawing<'a> {
    manifest: &'a SearchManifest,
    children: BTreeMap<NodeId, Vec<DrawingChild>>,
    best: BTreeSet<NodeId>,
    /// Smallest and largest score.
    range: (f64, f64),
    next_leaf: f64,
    lines: String,
    marks: String,
    depth: u32,
}

/// The drawing.
pub(super) fn svg(manifest: &SearchManifest) -> String {
    let scores = manifest.nodes.keys().filter_map(|id| root_comparison(manifest, *id));
    let range = scores.fold((0.0f64, 0.0f64), |(low, high), (s, _)| (low.min(s), high.max(s)));
    let mut drawing = TreeDrawing {
        manifest,
        children: children(manifest),
        best: best_path(manifest).into_iter().collect(),
        range,
        next_leaf: 0.0,
        lines: String::new(),
        marks: String::new(),
        depth: 0,
    };
    drawing.node(NodeId::default(), 0);
    for depth in 0..=drawing.depth {
        let y = height(depth) + 4.0;
        let _infallible = writeln!(
            drawing.marks,
            "<text class=\"depth\" x=\"6\" y=\"{y:.1}\">depth {depth}</text>"
        );
    }
    let width =
        2.0f64.mul_add(MARGIN, (drawing.next_leaf - 1.0).max(0.0) * NODE_SPACING).max(240.0);
    let height = 2.0f64.mul_add(MARGIN, f64::from(drawing.depth) * DEPTH_SPACING);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"search tree\">\n\
         {}{}</svg>\n",
        drawing.lines, drawing.marks
    )
}

/// The children of each node, in the order of evals.
fn children(manifest: &SearchManifest) -> BTreeMap<NodeId, Vec<DrawingChild>> {
    let mut children: BTreeMap<NodeId, Vec<DrawingChild>> = BTreeMap::new();
    for eval in manifest.evaluations.values() {
        let promoted = eval.decision.as_ref().and_then(|decision| decision.promoted_to_node_id);
        let child = promoted.map_or(DrawingChild::Eval(eval.eval_id), DrawingChild::Node);
        children.entry(eval.parent_node_id).or_default().push(child);
    }
    children
}

impl TreeDrawing<'_> {
    /// Draws a node and its subtree. Returns its horizontal position.
    fn node(&mut self, id: NodeId, depth: u32) -> f64 {
        self.depth = self.depth.max(depth);
        let below = self.children.remove(&id).unwrap_or_default();
        let mut ends = Vec::with_capacity(below.len());
        for child in below {
            ends.push(match child {
                DrawingChild::Node(node) => (self.node(node, depth + 1), Some(node)),
                DrawingChild::Eval(eval) => (self.eval(eval, depth + 1), None),
            });
        }
        let x = match (ends.first(), ends.last()) {
            (Some((first, _)), Some((last, _))) => f64::midpoint(*first, *last),
            _ => self.leaf(),
        };
        let y = height(depth);
        for (end, node) in ends {
            let is_best = node.is_some_and(|node| self.best.contains(&node));
            let class = if is_best { "edge best" } else { "edge" };
            let to = height(depth + 1);
            let _infallible = writeln!(
                self.lines,
                "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{end:.1}\" y2=\"{to:.1}\"/>"
            );
        }
        self.mark_node(id, x, y);
        x
    }

    fn leaf(&mut self) -> f64 {
        let x = self.next_leaf.mul_add(NODE_SPACING, MARGIN);
        self.next_leaf += 1.0;
        x
    }

    fn mark_node(&mut self, id: NodeId, x: f64, y: f64) {
        let node = self.manifest.node(id);
        let score = root_comparison(self.manifest, id).map(|(score, _)| score);
        let idea = node.idea_chain.last().map_or("root", |path| idea_name(path));
        let mut title = format!("{id} {idea}");
        if let Some(eval) = promoted_from(self.manifest, id) {
            title.push_str(&numbers(self.manifest, eval));
        }
        let results = &node.baseline_results_csv_path;
        let _infallible = write!(title, "\ncommit {}\nresults {results}", node.commit);
        let class = if self.best.contains(&id) { "node best" } else { "node" };
        let fill = self.colour(score);
        let _infallible = writeln!(
            self.marks,
            "<g class=\"{class}\"><title>{}</title><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"18\" \
             fill=\"{fill}\"/><text x=\"{x:.1}\" y=\"{:.1}\">{id}</text></g>",
            escaped(&title),
            y + 4.0
        );
    }

    fn eval(&mut self, id: EvalId, depth: u32) -> f64 {
        self.depth = self.depth.max(depth);
        let (x, y) = (self.leaf(), height(depth));
        let Some(eval) = self.manifest.evaluations.get(&id) else { return x };
        let _infallible = writeln!(
            self.marks,
            "<g class=\"eval\"><title>{}</title><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\"/></g>",
            escaped(&rejected(self.manifest, eval))
        );
        x
    }

    /// The colour of a score: from red over grey to green.
    fn colour(&self, score: Option<f64>) -> String {
        let (low, high) = self.range;
        let Some(score) = score else { return "hsl(0 0% 85%)".to_owned() };
        if score >= 0.0 {
            let share = if high > 0.0 { score / high } else { 0.0 };
            format!("hsl(130 {:.0}% {:.0}%)", 60.0 * share, 20.0f64.mul_add(-share, 85.0))
        } else {
            let share = if low < 0.0 { score / low } else { 0.0 };
            format!("hsl(5 {:.0}% {:.0}%)", 70.0 * share, 20.0f64.mul_add(-share, 85.0))
        }
    }
}

fn height(depth: u32) -> f64 {
    f64::from(depth).mul_add(DEPTH_SPACING, MARGIN)
}

fn rejected(manifest: &SearchManifest, eval: &SearchEval) -> String {
    let name = idea_name(&eval.idea_path);
    let mut text = format!("eval {} {name}\n{}", eval.eval_id, outcome(eval));
    if let Some(why) = decision_reason(manifest, eval) {
        let _infallible = write!(text, "\n{why}");
    }
    text + &numbers(manifest, eval)
}

/// The numbers of an eval, a line for each baseline.
fn numbers(manifest: &SearchManifest, eval: &SearchEval) -> String {
    let column = &manifest.run_config.scoring_profile.primary.column;
    let line = |whose: &str, of: &RelativeResults| {
        let score = number(of.score);
        format!("\nagainst the {whose}: score {score}, {column} {}", signed(of.primary_delta))
    };
    let views = [
        ("root", &eval.root_relative, RelativeResults::to_root(manifest, eval)),
        ("parent", &eval.parent_relative, RelativeResults::to_parent(manifest, eval)),
    ];
    let there = views.iter().filter(|(_, view, _)| view.is_some());
    there.map(|(whose, _, of)| line(whose, of)).collect()
}

/// Text escaped for HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' => safe.push('\n'),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
