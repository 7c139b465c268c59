//! The captured output of an execution that runs, as far as it is on the disk of its host.
//!
//! A scratch directory has a list of its captures. Output is without secrets there. Of each stream
//! the first [`limits::CAPTURE_HEAD_BYTES`] can be read before the capture ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::supervise;
use rollout_protocol::limits;
use rollout_protocol::wire::output::{OutputCursor, OutputPiece};

use super::context::ScratchWork;

/// Name of the list of captures, in the order in which they began: a directory each line.
const LIST: &str = "captures.txt";

/// Bytes of the list that are read: a task has at most some hundred steps.
const LIST_BYTES: u64 = 256 * 1024;

/// Bytes of the smallest piece: several characters.
const MIN_PIECE_BYTES: u64 = 64;

/// Names of the files of a capture.
const STREAMS: [&str; 2] = ["stdout.txt", "stderr.txt"];

/// The list of the captures in a scratch directory. Without it, output cannot be followed; nothing else
/// needs it, and nothing waits until it is written.
#[derive(Debug)]
pub(crate) struct CaptureList {
    lines: Arc<CaptureLines>,
    scratch: ScratchWork,
}

#[derive(Debug)]
struct CaptureLines {
    file: PathBuf,
    /// Lines that are not yet written.
    new: Mutex<String>,
    /// Held while lines are written, so that they keep their order.
    writing: Mutex<()>,
}

impl CaptureList {
    /// The list of a scratch directory.
    pub(crate) fn new(directory: &Path, scratch: &ScratchWork) -> Self {
        let (new, writing) = (Mutex::default(), Mutex::default());
        let lines = CaptureLines { file: directory.join(LIST), new, writing };
        Self { lines: Arc::new(lines), scratch: scratch.clone() }
    }

    /// Adds a capture.
    pub(crate) fn add(&self, directory: &str) {
        let mut new = self.lines.new.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = new.is_empty();
        new.push_str(directory);
        new.push('\n');
        drop(new);
        if begins {
            let (lines, running) = (Arc::clone(&self.lines), self.scratch.begin());
            supervise::start_blocking(move || {
                lines.write();
                drop(running);
            });
        }
    }
}

impl CaptureLines {
    fn write(&self) {
        let one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
        let list = OpenOptions::new().append(true).create(true).open(&self.file);
        if let Err(error) = list.and_then(|mut list| list.write_all(new.as_bytes())) {
            tracing::debug!("cannot note captures in {}: {error}", self.file.display());
        }
        drop(one);
    }
}

/// The next piece of output in a scratch directory after a position, if there is one. The position
/// advances to the next capture when there is nothing new in one that is not the last. `max_bytes` is
/// for a reader for whom the usual limit is too large.
///
/// # Errors
/// Errors of the disk, except that a file is missing.
pub fn read_output(
    scratch: &Path,
    after: &OutputCursor,
    max_bytes: Option<u64>,
) -> io::Result<Option<OutputPiece>> {
    let most = limits::LIVE_OUTPUT_BYTES;
    let max_bytes = max_bytes.unwrap_or(most).clamp(MIN_PIECE_BYTES, most);
    let mut text = Vec::new();
    if let Some(list) = open(&scratch.join(LIST))? {
        list.take(LIST_BYTES).read_to_end(&mut text)?;
    }
    let text = String::from_utf8_lossy(&text);
    let mut position = after.clone();
    let start = usize::try_from(position.capture).unwrap_or(usize::MAX);
    for directory in text.lines().skip(start) {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if Path::new(directory).components().all(is_plain) {
            for (stream, name) in STREAMS.iter().enumerate() {
                let path = format!("{directory}/{name}");
                let from = position.offsets[stream];
                if let Some((text, next)) = read_text(&scratch.join(&path), from, max_bytes)? {
                    position.offsets[stream] = next;
                    return Ok(Some(OutputPiece { path, text, next: position }));
                }
            }
        }
        position = OutputCursor { capture: position.capture + 1, offsets: [0; 2] };
    }
    Ok(None)
}

/// The text of a file after an offset, and the offset after it; `None` without new text.
fn read_text(path: &Path, from: u64, max_bytes: u64) -> io::Result<Option<(String, u64)>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes)?;
    // The rest of a character comes later.
    let end = match std::str::from_utf8(&bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    };
    bytes.truncate(end);
    let next = from + bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Some((text, next)).filter(|(text, _)| !text.is_empty()))
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(scratch: &Path, cursor: &mut OutputCursor) -> Vec<(String, String)> {
        let mut found = Vec::new();
        while let Some(piece) = read_output(scratch, cursor, None).expect("readable") {
            *cursor = piece.next;
            found.push((piece.path, piece.text));
        }
        found
    }

    fn piece(path: &str, text: &str) -> (String, String) {
        (path.to_owned(), text.to_owned())
    }

    #[tokio::test]
    async fn output_is_read_once_in_the_order_of_captures() {
        let dir = tempfile::tempdir().expect("a directory");
        let scratch = ScratchWork::default();
        let list = CaptureList::new(dir.path(), &scratch);
        let write = |path: &str, bytes: &[u8]| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("a directory");
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.expect("a file").write_all(bytes).expect("written");
        };
        let mut cursor = OutputCursor::default();
        assert!(read_all(dir.path(), &mut cursor).is_empty(), "no list yet");
        list.add("setup");
        list.add("command");
        scratch.ended().await;
        write("command/stdout.txt", "one ä".as_bytes());
        let end = "ö".as_bytes();
        write("command/stdout.txt", &end[..1]);
        assert_eq!(read_all(dir.path(), &mut cursor), [piece("command/stdout.txt", "one ä")]);
        write("command/stdout.txt", &end[1..]);
        write("command/stderr.txt", b"warn");
        let new = [piece("command/stdout.txt", "ö"), piece("command/stderr.txt", "warn")];
        assert_eq!(read_all(dir.path(), &mut cursor), new);
        assert!(read_all(dir.path(), &mut cursor).is_empty());
        list.add("../outside");
        list.add("logs/verifier");
        scratch.ended().await;
        write("logs/verifier/stdout.txt", b"tested");
        assert_eq!(
            read_all(dir.path(), &mut cursor),
            [piece("logs/verifier/stdout.txt", "tested")]
        );
    }

    #[test]
    fn large_output_comes_in_bounded_pieces() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(LIST), "command\n").expect("written");
        std::fs::create_dir(dir.path().join("command")).expect("a directory");
        let text = "x".repeat(3 * limits::LIVE_OUTPUT_BYTES as usize + 5);
        std::fs::write(dir.path().join("command/stdout.txt"), &text).expect("written");
        let found = read_all(dir.path(), &mut OutputCursor::default());
        assert_eq!(found.len(), 4);
        assert_eq!(found.iter().map(|(_, text)| text.as_str()).collect::<String>(), text);
        for (wanted, length) in [(0, MIN_PIECE_BYTES), (100, 100)] {
            let piece = read_output(dir.path(), &OutputCursor::default(), Some(wanted));
            let piece = piece.expect("readable").expect("a piece");
            assert_eq!(piece.text.len() as u64, length);
        }
    }
}
