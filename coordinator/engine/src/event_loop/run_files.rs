//! Parts of the run's files for readers on other hosts.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use rollout_base::shown_path::shown;
use rollout_protocol::limits::RUN_FILE_PART_BYTES;
use rollout_protocol::wire::command::{CommandReceipt, RunFile, RunFilePart};

use crate::journal::{JournalPrefix, RunLayout, segment_epochs};

/// Reads a part of a file from an offset on, with a limit if the usual one is too large. `durable` is
/// the end of the journal: what follows may vanish.
pub(super) fn read_part(
    layout: &RunLayout,
    durable: JournalPrefix,
    file: RunFile,
    (offset, max_bytes): (u64, Option<u64>),
) -> CommandReceipt {
    // Of at least one byte: an empty part is the end of the file.
    let max_bytes = max_bytes.unwrap_or(RUN_FILE_PART_BYTES).clamp(1, RUN_FILE_PART_BYTES);
    let (path, end) = match file {
        RunFile::Plan => (layout.plan(), None),
        RunFile::Manifest => (layout.manifest(), None),
        RunFile::Owner => (layout.lock_info(), None),
        RunFile::Store => (layout.store(), None),
        RunFile::Segment(epoch) => {
            let end = (epoch == durable.epoch).then_some(durable.bytes);
            (layout.segment(epoch), end)
        }
    };
    let part = read(&path, end, offset, max_bytes);
    let epochs = segment_epochs(layout).unwrap_or_default();
    match part {
        Ok((file_bytes, bytes)) => {
            let part = Some(RunFilePart::new(file_bytes, &bytes, epochs));
            CommandReceipt { part, ..CommandReceipt::default() }
        }
        Err(error) => CommandReceipt::refused(format!("cannot read {}: {error}", shown(&path))),
    }
}

fn read(
    path: &Path,
    end: Option<u64>,
    offset: u64,
    max_bytes: u64,
) -> io::Result<(Option<u64>, Vec<u8>)> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((None, Vec::new())),
        file => file?,
    };
    let length = file.metadata()?.len();
    let length = end.map_or(length, |end| end.min(length));
    let wanted = length.saturating_sub(offset).min(max_bytes);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(wanted).read_to_end(&mut bytes)?;
    Ok((Some(length), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::RecordChain;

    fn part(layout: &RunLayout, durable: JournalPrefix, file: RunFile, offset: u64) -> RunFilePart {
        read_part(layout, durable, file, (offset, None)).part.expect("readable")
    }

    #[test]
    fn parts_of_a_file_end_where_it_is_durable() {
        let directory = tempfile::tempdir().expect("a directory");
        let layout = RunLayout::new(directory.path());
        std::fs::create_dir(layout.journal()).expect("made");
        std::fs::write(layout.segment(2), vec![7; 1_000_000]).expect("written");
        let durable =
            JournalPrefix { epoch: 2, records: 1, bytes: 600_000, chain: RecordChain::default() };
        let first = part(&layout, durable, RunFile::Segment(2), 0);
        let length = first.bytes().expect("encoded").len() as u64;
        assert_eq!((first.file_bytes, length), (Some(600_000), RUN_FILE_PART_BYTES));
        assert_eq!(first.epochs, [2]);
        let rest = part(&layout, durable, RunFile::Segment(2), length).bytes().expect("encoded");
        assert_eq!(rest.len() as u64, 600_000 - length);
        assert_eq!(part(&layout, durable, RunFile::Segment(2), 700_000).bytes(), Some(Vec::new()));
        assert_eq!(part(&layout, durable, RunFile::Plan, 0).file_bytes, None);
        for (wanted, found) in [(0, 1), (1000, 1000), (u64::MAX, RUN_FILE_PART_BYTES)] {
            let place = (5, Some(wanted));
            let part = read_part(&layout, durable, RunFile::Segment(2), place).part;
            let bytes = part.expect("readable").bytes().expect("encoded");
            assert_eq!(bytes.len() as u64, found, "{wanted}");
        }
    }
}
