//! The table of all rounds.

use std::fmt::Write as _;

use crate::serve::soak::figures::Figures;
use crate::serve::soak::mix::{Kill, Work};

/// A round.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) number: usize,
    /// Seconds since the begin of the first one.
    pub(super) seconds: u64,
    pub(super) kill: Kill,
    pub(super) work: Work,
    /// When its runs had ended.
    pub(super) ended: Figures,
    /// When they were removed.
    pub(super) deleted: Figures,
}

const HEAD: &str = "\
                                    | ended    | a run     | farm   | removed, after gc                            | descriptors             | anonymous memory in MiB
round     s kill    runs items | msgs keys | files KiB | B/smpl | msgs keys marks cons state store host | serve    a    b nats | serve     a     b  nats";

/// A line for each round.
pub(super) fn text(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let Row { number, seconds, kill, work, ended, deleted } = row;
        let kill = format!("{kill:?}").to_lowercase();
        let (runs, items) = (work.ended(), work.items);
        let (messages, keys) = (ended.queue.messages, ended.queue.keys);
        let (files, kib, bytes) = (work.run.files, work.run.kib, work.bytes_per_sample);
        let queue = &deleted.queue;
        let line = write!(
            text,
            "\n{number:5} {seconds:5} {kill:7} {runs:4} {items:5} | {messages:4} {keys:4} | \
             {files:5} {kib:3} | {bytes:6} | {:4} {:4} {:5} {:4} {:5} {:5} {:4} |",
            queue.messages,
            queue.keys,
            queue.markers,
            queue.consumers,
            deleted.state_files,
            deleted.store_files,
            deleted.host_files,
        );
        line.expect("a text takes everything");
        for process in &deleted.processes {
            write!(text, " {:4}", process.descriptors).expect("a text takes everything");
        }
        text.push_str(" |");
        for process in &deleted.processes {
            let mib = process.memory_kib as f64 / 1024.0;
            write!(text, " {mib:5.1}").expect("a text takes everything");
        }
    }
    text
}
