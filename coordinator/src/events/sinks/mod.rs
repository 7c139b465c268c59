//! The outputs that a run's events go to.

pub(super) mod files;
mod json;
pub mod terminal;

use std::io::Write;

use self::json::JsonLines;
use self::terminal::{Screen, Style, Terminal};
use super::sink::{StartSink, Workload};
use crate::results::report::DatasetFacts;

/// Lines of JSON, for programs.
pub fn json(out: Box<dyn Write + Send>) -> StartSink {
    Box::new(|_| Ok(Box::new(JsonLines::start(out)?)))
}

/// Progress for people.
pub fn terminal(screen: Screen, style: Style) -> StartSink {
    Box::new(move |workload| {
        let terminal = match workload {
            Workload::Job(facts) => {
                let header = facts.datasets.iter().map(DatasetFacts::line).collect();
                Terminal::of_job(screen, style, facts, header)?
            }
            Workload::Search => Terminal::of_search(screen, style)?,
        };
        Ok(Box::new(terminal))
    })
}
