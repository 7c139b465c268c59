//! Terminal view of a search's progress, folded from events. The time is an argument.

use std::time::{Duration, Instant};

use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::search::{EvalStatus, PromotedEval, SearchEvent};

use super::ProgressView;
use super::format::{bar, duration, fit, number, plural};
use super::frame::{self, BAR_WIDTH};
use super::run_view::RunView;
use super::style::Style;
use crate::results::escape;

/// Time between two progress lines without a live region. They are only a sign of life, because
/// every eval has its own lines.
const LINE_EVERY: Duration = Duration::from_secs(60);

/// The displayed state of a search.
#[derive(Debug)]
pub(super) struct SearchView {
    run: RunView,
    search: String,
    depth: u32,
    max_depth: u32,
    settled: u64,
    planned: u64,
    /// Evals that failed in this session.
    failed: u64,
    best: Option<PromotedEval>,
}

impl SearchView {
    pub(super) fn new(style: Style) -> Self {
        Self {
            run: RunView::new(style, "commands"),
            search: String::new(),
            depth: 0,
            max_depth: 0,
            settled: 0,
            planned: 0,
            failed: 0,
            best: None,
        }
    }

    fn on_search(&mut self, event: &SearchEvent, now: Instant) {
        match event {
            SearchEvent::SearchStarted { search, depth, max_depth, settled, planned, best } => {
                self.run.begin(now);
                self.search = escape::line(search).into_owned();
                (self.depth, self.max_depth) = (*depth, *max_depth);
                (self.settled, self.planned, self.best) = (*settled, *planned, *best);
                if *planned > 0 {
                    let evals = plural(*planned, "eval");
                    self.run.line(format!(
                        "{}: resumed at depth {depth}, {settled} of {evals} settled",
                        self.search
                    ));
                }
            }
            SearchEvent::IdeasStarted { node } => {
                self.run.line(format!("node {node}: generating ideas"));
            }
            SearchEvent::DepthPlanned { depth, evals, nodes } => {
                self.depth = *depth;
                self.planned += evals;
                let (ideas, nodes) = (plural(*evals, "idea"), plural(*nodes, "node"));
                self.run.line(format!("depth {depth}: {ideas} to try on {nodes}"));
            }
            SearchEvent::EvalStarted { eval, node, idea } => {
                self.run.line(format!("eval {eval} of node {node}: {}", escape::line(idea)));
            }
            SearchEvent::EvalEnded { eval, status, error, .. } => {
                self.settled += 1;
                self.failed += u64::from(*status == EvalStatus::Failed);
                let word = match status {
                    EvalStatus::Completed => self.run.style.success(status.as_str()),
                    EvalStatus::Failed => self.run.style.failure(status.as_str()),
                    _ => self.run.style.warning(status.as_str()),
                };
                let why = error.as_deref().map(|why| format!(": {}", escape::line(why)));
                self.run.line(format!("eval {eval}: {word}{}", why.unwrap_or_default()));
            }
            SearchEvent::EvalRejected { eval, reason } => {
                let reason = escape::line(reason);
                self.run.line(format!("eval {eval} is not promoted: {reason}"));
            }
            SearchEvent::DepthDecided { depth, promoted, stop } => {
                for new in promoted {
                    if self.best.is_none_or(|best| best.score < new.score) {
                        self.best = Some(*new);
                    }
                }
                self.run.line(decision_line(*depth, promoted, stop.is_some()));
            }
        }
    }

    /// Parts of the line below the bar.
    fn parts(&self, now: Instant) -> Vec<String> {
        let mut parts = vec![match self.best {
            Some(PromotedEval { eval, score, .. }) => {
                let score =
                    score.map(|score| format!(" (score {} against the root)", number(score)));
                format!("best eval {eval}{}", score.unwrap_or_default())
            }
            None => "nothing better than the root yet".to_owned(),
        }];
        match self.run.retries {
            0 => {}
            1 => parts.push("1 retry".to_owned()),
            retries => parts.push(format!("{retries} retries")),
        }
        parts.push(duration(self.run.elapsed(now)));
        if self.run.stopping.is_some() {
            parts.push("stopping".to_owned());
        }
        parts
    }

    /// The depth and nonzero counts.
    fn counts(&self) -> String {
        let mut text = format!("depth {} of {}", self.depth, self.max_depth);
        let running = self.run.running.len() as u64;
        for (count, word) in [(self.failed, "failed"), (running, "running")] {
            if count > 0 {
                text.push_str(&format!(", {count} {word}"));
            }
        }
        text
    }
}

fn decision_line(depth: u32, promoted: &[PromotedEval], is_end: bool) -> String {
    let mut text = format!("depth {depth}: {} promoted", promoted.len());
    for PromotedEval { node, eval, score } in promoted {
        let score = score.map_or_else(|| "-".to_owned(), |score| format!("{score:.4}"));
        text.push_str(&format!(", eval {eval} is node {node} (score {score} against the root)"));
    }
    if is_end {
        text.push_str("; the search has ended");
    }
    text
}

impl ProgressView for SearchView {
    fn apply(&mut self, event: &RunEvent, now: Instant) {
        self.run.apply(event, now);
        match &event.kind {
            EventKind::Search(event) => self.on_search(event, now),
            EventKind::TrialRetry { name, .. } | EventKind::TrialLost { name, .. } => {
                if let Some((word, text)) = self.run.event_text(&event.kind) {
                    self.run.item_line(word, &frame::label(name), &text);
                }
            }
            _ => {}
        }
    }

    fn take_lines(&mut self) -> Vec<String> {
        self.run.take_lines()
    }

    fn has_begun(&self) -> bool {
        self.run.has_begun()
    }

    fn line_every(&self) -> Duration {
        LINE_EVERY
    }

    fn live(&self, now: Instant, width: usize, height: usize) -> Vec<String> {
        let (done, total) = (self.settled, self.planned);
        let mut lines = vec![
            format!(
                "{} {} {done}/{total}  {}",
                self.search,
                bar(done, total.max(1), BAR_WIDTH),
                self.counts()
            ),
            format!("  {}", self.parts(now).join(" · ")),
        ];
        lines.extend(frame::running(&self.run, now, height.saturating_sub(lines.len() + 2)));
        lines.iter().map(|line| fit(line, width)).collect()
    }

    fn plain(&self, now: Instant) -> String {
        let (done, total) = (self.settled, plural(self.planned, "eval"));
        let mut line = format!("{done}/{total}: {}", self.counts());
        for part in self.parts(now) {
            line.push_str(&format!("; {part}"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::search::{EvalId, NodeId};

    use super::*;

    fn apply_search_event(view: &mut SearchView, event: SearchEvent, now: Instant) {
        let (at, kind) = (Timestamp::UNIX_EPOCH, EventKind::Search(event));
        view.apply(&RunEvent { at, kind }, now);
    }

    #[test]
    fn search_view_shows_evals_depth_and_best_score() {
        let (mut view, now) = (SearchView::new(Style::PLAIN), Instant::now());
        let search = "a\nsearch".to_owned();
        let started = SearchEvent::SearchStarted {
            search,
            depth: 0,
            max_depth: 3,
            settled: 0,
            planned: 0,
            best: None,
        };
        apply_search_event(&mut view, started, now);
        assert_eq!(
            view.live(now, 80, 24),
            [
                "a\\nsearch ░░░░░░░░░░░░░░░░░░░░░░░░ 0/0  depth 0 of 3",
                "  nothing better than the root yet · 0s"
            ]
        );
        apply_search_event(
            &mut view,
            SearchEvent::DepthPlanned { depth: 0, evals: 4, nodes: 1 },
            now,
        );
        let (eval, node) = (EvalId(0), NodeId(0));
        let ended = SearchEvent::EvalEnded { eval, node, status: EvalStatus::Failed, error: None };
        apply_search_event(&mut view, ended, now);
        let promoted = vec![PromotedEval { node: NodeId(1), eval: EvalId(1), score: Some(0.25) }];
        apply_search_event(
            &mut view,
            SearchEvent::DepthDecided { depth: 0, promoted, stop: None },
            now,
        );
        assert_eq!(
            view.take_lines(),
            [
                "depth 0: 4 ideas to try on 1 node",
                "eval 0000: failed",
                "depth 0: 1 promoted, eval 0001 is node 0001 (score 0.2500 against the root)",
            ]
        );
        assert_eq!(
            view.plain(now),
            "1/4 evals: depth 0 of 3, 1 failed; best eval 0001 (score 0.25 against the root); 0s"
        );
        assert!(view.live(now, 30, 24).iter().all(|l| console::measure_text_width(l) <= 30));
    }
}
