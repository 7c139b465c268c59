//! The outputs that a run's events go to.

pub(super) mod files;
mod json;
pub mod terminal;

use std::io::Write;

use self::json::JsonLines;
use self::terminal::{Screen, Style, Terminal};
use super::sink::StartSink;
use crate::results::report::DatasetFacts;

/// Lines of JSON, for programs.
pub fn json(out: Box<dyn Write + Send>) -> StartSink {
    Box::new(|_| Ok(Box::new(JsonLines::start(out)?)))
}

/// Progress for people.
pub fn terminal(screen: Screen, style: Style) -> StartSink {
    Box::new(move |context| {
        let facts = context.facts;
        let header = facts.datasets.iter().map(DatasetFacts::line).collect();
        let terminal = Terminal::start(screen, style, &facts.agents, &facts.metrics, header)?;
        Ok(Box::new(terminal))
    })
}
