//! Traces of commands that run work.

use crate::events::SinkStarter;
use crate::events::sinks;
use crate::traces::{TraceExport, TracedProcess};

/// Starts the export of a run, if the environment asks for one, and adds the sink that feeds it.
pub(super) fn for_run(sinks: &mut Vec<SinkStarter>) -> TraceExport {
    let export = TraceExport::start(TracedProcess::Coordinator);
    if export.tracer().is_enabled() {
        sinks.push(sinks::traces(export.tracer()));
    }
    export
}
