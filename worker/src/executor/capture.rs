//! Captured output: the beginning and the end of each stream, without secrets, in files.
//!
//! Large output never fills the disk: the first [`limits::CAPTURE_HEAD_BYTES`] of a stream go to
//! its file as they come, the last [`limits::CAPTURE_TAIL_BYTES`] are held in memory, and a line
//! between them states the number of bytes left out.
//!
//! Blocking threads write the files, so a command and its output never wait for a disk. What a disk has
//! not yet taken is held in memory: at most the beginning of a stream.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rollout_base::fs_make::make_in_scratch;
use rollout_base::secrets::{RedactingStream, RedactionStyle, Redactor};
use rollout_base::supervise::{self, BlockingDrop};
use rollout_base::warning_limiter::WarningLimiter;
use rollout_environment::{OutputSink, OutputStream};
use rollout_protocol::limits;

use super::context::ScratchWork;

/// Bytes of the beginning, and of the end, of output of which only the last lines are quoted.
const QUOTED_BYTES: u64 = 16 * 1024;

/// Output that a disk did not take. Every stream of every script fails on one that takes nothing.
static UNWRITTEN: WarningLimiter = WarningLimiter::new();

/// The captured output of one script.
#[derive(Debug)]
pub struct Capture {
    streams: [Arc<StreamCapture>; 2],
    scratch: ScratchWork,
}

/// A captured stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedStream {
    /// File with the output that was kept.
    pub file: PathBuf,
    /// Bytes that the script printed.
    pub total_bytes: u64,
    /// Whether the middle was left out.
    pub truncated: bool,
}

impl Capture {
    /// Captures into two files below the scratch directory of an execution, created at the first byte or at
    /// the end. Creates their directory if it is missing, but not that of the worker.
    pub fn new(
        directory: &Path,
        [stdout, stderr]: [PathBuf; 2],
        redactor: &Redactor,
        scratch: &ScratchWork,
    ) -> Self {
        let (head, tail) = (limits::CAPTURE_HEAD_BYTES, limits::CAPTURE_TAIL_BYTES);
        Self::with_bounds(directory, [stdout, stderr], redactor, scratch, [head, tail])
    }

    /// The same for output that is not kept, but quoted.
    pub(crate) fn for_quotes(
        directory: &Path,
        files: [PathBuf; 2],
        redactor: &Redactor,
        scratch: &ScratchWork,
    ) -> Self {
        Self::with_bounds(directory, files, redactor, scratch, [QUOTED_BYTES; 2])
    }

    fn with_bounds(
        directory: &Path,
        files: [PathBuf; 2],
        redactor: &Redactor,
        scratch: &ScratchWork,
        bounds: [u64; 2],
    ) -> Self {
        let stream = |path| {
            let place = CapturePlace { directory: directory.to_owned(), path };
            Arc::new(StreamCapture::new(place, redactor, bounds))
        };
        Self { streams: files.map(stream), scratch: scratch.clone() }
    }

    /// Ends the capture; later writes are ignored.
    ///
    /// # Errors
    /// The first error of the local disk.
    pub async fn finish(&self) -> io::Result<[CapturedStream; 2]> {
        self.finish_and_read(Ok).await
    }

    /// Ends the capture and reads its files.
    ///
    /// # Errors
    /// The first error of the local disk.
    pub(crate) async fn finish_and_read<T: Send + 'static>(
        &self,
        read: impl FnOnce([CapturedStream; 2]) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (streams, running) = (self.streams.clone(), self.scratch.begin());
        let work = move || {
            let read = finish(&streams).and_then(read);
            drop(running);
            read
        };
        supervise::blocking(work).await
    }

    /// Ends the capture like [`finish`](Self::finish). Blocks.
    ///
    /// # Errors
    /// The first error of the local disk.
    pub(crate) fn finish_blocking(&self) -> io::Result<[CapturedStream; 2]> {
        finish(&self.streams)
    }
}

fn finish(streams: &[Arc<StreamCapture>; 2]) -> io::Result<[CapturedStream; 2]> {
    let [stdout, stderr] = streams.each_ref().map(|stream| stream.finish());
    Ok([stdout?, stderr?])
}

impl OutputSink for Capture {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let stream = &self.streams[stream as usize];
        if stream.state().take(bytes) {
            let (stream, running) = (Arc::clone(stream), self.scratch.begin());
            supervise::start_blocking(move || {
                stream.write_clean();
                drop(running);
            });
        }
    }
}

/// A stream and its file. Who locks both locks the file first.
#[derive(Debug)]
struct StreamCapture {
    place: CapturePlace,
    redactor: Redactor,
    /// Never locked while a disk is waited for.
    state: Mutex<CaptureState>,
    /// Locked by blocking threads only.
    file: Mutex<CaptureFile>,
}

/// A file that is created with the directories above it, up to the scratch directory.
#[derive(Debug)]
struct CapturePlace {
    /// The scratch directory of the execution.
    directory: PathBuf,
    path: PathBuf,
}

#[derive(Debug)]
struct CaptureState {
    /// The stream, until the head is full.
    head: Option<RedactingStream>,
    head_left: u64,
    /// Raw bytes after the head: the tail, preceded by as many bytes as a secret may reach into it.
    tail: VecDeque<u8>,
    tail_bytes: usize,
    /// Bytes at the beginning of the tail that the head has already replaced.
    replaced: usize,
    omitted: u64,
    total: u64,
    /// Bytes of the head that are not yet written.
    clean: Vec<u8>,
    /// Whether a blocking thread writes them.
    is_writing: bool,
    finished: bool,
}

/// The rest of a stream at its end, still with secrets.
struct CaptureRest {
    clean: Vec<u8>,
    head: Option<RedactingStream>,
    tail: Vec<u8>,
    replaced: usize,
    omitted: u64,
}

#[derive(Debug, Default)]
struct CaptureFile {
    file: Option<BlockingDrop<File>>,
    failed: Option<io::Error>,
}

impl StreamCapture {
    fn new(place: CapturePlace, redactor: &Redactor, [head, tail]: [u64; 2]) -> Self {
        let state = CaptureState {
            head: Some(redactor.stream(RedactionStyle::Marker)),
            head_left: head,
            tail: VecDeque::new(),
            tail_bytes: tail as usize + redactor.overlap(),
            replaced: 0,
            omitted: 0,
            total: 0,
            clean: Vec::new(),
            is_writing: false,
            finished: false,
        };
        let redactor = redactor.clone();
        Self { place, redactor, state: Mutex::new(state), file: Mutex::default() }
    }

    /// Writes the clean bytes until there are none. Blocks.
    fn write_clean(&self) {
        let mut file = self.file();
        loop {
            let clean = {
                let mut state = self.state();
                state.is_writing = !state.clean.is_empty();
                if !state.is_writing {
                    return;
                }
                std::mem::take(&mut state.clean)
            };
            file.write(&self.place, &clean);
        }
    }

    /// Ends the stream; ending it again returns the same result and leaves the file alone. Blocks.
    fn finish(&self) -> io::Result<CapturedStream> {
        let mut file = self.file();
        let (rest, total_bytes, truncated) = self.state().end();
        if let Some(rest) = rest {
            file.open(&self.place);
            file.write(&self.place, &rest.into_clean(&self.redactor));
            file.close();
        }
        match &file.failed {
            Some(error) => Err(match error.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
            None => Ok(CapturedStream { file: self.place.path.clone(), total_bytes, truncated }),
        }
    }

    fn state(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().expect("nothing panics while it holds a stream")
    }

    fn file(&self) -> MutexGuard<'_, CaptureFile> {
        self.file.lock().expect("nothing panics while it holds a stream")
    }
}

impl CaptureState {
    /// Takes the next bytes. Returns whether there are some to write that nothing writes yet.
    fn take(&mut self, bytes: &[u8]) -> bool {
        if self.finished {
            return false;
        }
        self.total += bytes.len() as u64;
        let now = bytes.len().min(usize::try_from(self.head_left).unwrap_or(usize::MAX));
        let (first, rest) = bytes.split_at(now);
        if let Some(head) = &mut self.head {
            head.push(first, &mut self.clean);
            self.head_left -= first.len() as u64;
        }
        if self.head_left == 0
            && let Some(head) = self.head.take()
        {
            // The held-back bytes may be the beginning of a secret that continues in the tail.
            let (held_back, replaced) = head.abandon();
            self.tail.extend(held_back);
            self.replaced = replaced;
        }
        self.push_tail(rest);
        let begins = !self.clean.is_empty() && !self.is_writing;
        self.is_writing |= begins;
        begins
    }

    /// Adds bytes to the tail and drops the oldest.
    fn push_tail(&mut self, bytes: &[u8]) {
        let useful = &bytes[bytes.len().saturating_sub(self.tail_bytes)..];
        self.tail.extend(useful);
        let over = self.tail.len().saturating_sub(self.tail_bytes);
        self.tail.drain(..over);
        self.omitted += (bytes.len() - useful.len() + over) as u64;
    }

    /// Ends the stream. Returns what is left of it at the first call, its bytes, and whether some of them
    /// are left out.
    fn end(&mut self) -> (Option<CaptureRest>, u64, bool) {
        let is_first = !std::mem::replace(&mut self.finished, true);
        let rest = is_first.then(|| CaptureRest {
            clean: std::mem::take(&mut self.clean),
            head: self.head.take(),
            tail: std::mem::take(&mut self.tail).into(),
            replaced: self.replaced,
            omitted: self.omitted,
        });
        (rest, self.total, self.omitted > 0)
    }
}

impl CaptureRest {
    fn into_clean(self, redactor: &Redactor) -> Vec<u8> {
        let Self { mut clean, head, tail, replaced, omitted } = self;
        if let Some(head) = head {
            head.finish(&mut clean);
        }
        if omitted > 0 {
            let skip = redactor.overlap();
            let omitted = omitted + skip as u64 - replaced as u64;
            let mark = format!("\n[… {omitted} bytes left out …]\n");
            clean.extend_from_slice(mark.as_bytes());
            redactor.bytes(&tail, skip, &mut clean);
        } else {
            redactor.bytes(&tail, replaced, &mut clean);
        }
        clean
    }
}

impl CaptureFile {
    /// Writes bytes. After an error the rest of the stream is dropped: the script continues.
    fn write(&mut self, place: &CapturePlace, bytes: &[u8]) {
        self.open(place);
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            self.fail(&place.path, error);
        }
    }

    fn open(&mut self, place: &CapturePlace) {
        if self.file.is_none() && self.failed.is_none() {
            match place.create_file() {
                Ok(file) => self.file = Some(BlockingDrop::new(file)),
                Err(error) => self.fail(&place.path, error),
            }
        }
    }

    fn fail(&mut self, path: &Path, error: io::Error) {
        let shown = path.display();
        UNWRITTEN.warn(&format_args!("cannot write captured output to {shown}: {error}"));
        self.close();
        self.failed = Some(error);
    }

    fn close(&mut self) {
        drop(self.file.take().map(BlockingDrop::into_inner));
    }
}

impl CapturePlace {
    fn create_file(&self) -> io::Result<File> {
        match File::create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = self.path.parent().ok_or(error)?;
                make_in_scratch(&self.directory, directory)?;
                File::create(&self.path)
            }
            other => other,
        }
    }
}

/// The last `max_bytes` of a captured file as text, after a line with the number of bytes left out.
/// Blocks.
///
/// # Errors
/// Errors of the local disk.
pub fn read_tail(captured: &CapturedStream, max_bytes: usize) -> io::Result<String> {
    let mut file = File::open(&captured.file)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(max_bytes as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(max_bytes as u64).read_to_end(&mut bytes)?;
    if start == 0 {
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    let broken = bytes.iter().take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    let shown = bytes.len() - broken;
    let omitted = captured.total_bytes.saturating_sub(shown as u64);
    let text = String::from_utf8_lossy(&bytes[broken..]);
    Ok(format!("[… {omitted} bytes left out …]\n{text}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const SECRET: &str = "hunter2hunter2";

    fn bounded_capture(dir: &Path, head: u64, tail: u64) -> Capture {
        let redactor = Redactor::new([("PASSWORD", SECRET)]);
        let files = [dir.join("new/stdout.txt"), dir.join("new/stderr.txt")];
        Capture::with_bounds(dir, files, &redactor, &ScratchWork::default(), [head, tail])
    }

    #[tokio::test]
    async fn capture_keeps_stdout_and_stderr_separate() {
        let dir = tempfile::tempdir().expect("a directory");
        let capture = bounded_capture(dir.path(), 100, 100);
        assert!(!dir.path().join("new").exists(), "nothing is made before there is something");
        capture.write(OutputStream::Stdout, b"one ");
        capture.write(OutputStream::Stdout, b"two");
        let [stdout, stderr] = capture.finish().await.expect("written");
        capture.write(OutputStream::Stdout, b"too late");
        assert_eq!(std::fs::read(&stdout.file).expect("readable"), b"one two");
        assert_eq!((stdout.total_bytes, stdout.truncated), (7, false));
        assert_eq!(std::fs::read(&stderr.file).expect("readable"), b"");
    }

    #[tokio::test]
    async fn output_of_a_run_whose_directory_is_gone_makes_no_new_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let scratch = dir.path().join("run/.work/workers/w-1/scratch/exec");
        std::fs::create_dir_all(&scratch).expect("made");
        let redactor = Redactor::new([("PASSWORD", SECRET)]);
        let output = async |directory: &str| {
            let files = ["stdout.txt", "stderr.txt"].map(|name| scratch.join(directory).join(name));
            let capture = Capture::new(&scratch, files, &redactor, &ScratchWork::default());
            capture.write(OutputStream::Stdout, b"said");
            capture.finish().await
        };
        assert!(output("steps/first/logs/verifier").await.is_ok(), "the deepest directory");
        // That of the run, and that of the worker alone.
        for gone in ["run", "run/.work/workers/w-1"].map(|gone| dir.path().join(gone)) {
            std::fs::rename(&gone, dir.path().join("moved")).expect("moved");
            for directory in ["", "command", "steps/first/logs/verifier"] {
                let error = output(directory).await.expect_err("its directory is gone");
                assert_eq!(error.kind(), io::ErrorKind::NotFound, "{directory}");
                assert!(!gone.exists(), "{directory}");
            }
            std::fs::rename(dir.path().join("moved"), &gone).expect("moved back");
        }
    }

    #[tokio::test]
    async fn capture_finished_twice_returns_same_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let capture = bounded_capture(dir.path(), 100, 100);
        capture.write(OutputStream::Stderr, b"last words");
        let first = capture.finish().await.expect("written");
        assert_eq!(capture.finish().await.expect("written"), first);
        assert_eq!(std::fs::read(&first[1].file).expect("readable"), b"last words");
    }

    #[tokio::test]
    async fn capture_above_limit_keeps_head_and_tail() {
        let dir = tempfile::tempdir().expect("a directory");
        let capture = bounded_capture(dir.path(), 1000, 1000);
        let line = b"0123456789abcde\n".repeat(4096);
        for _ in 0..100 {
            capture.write(OutputStream::Stdout, &line);
        }
        capture.write(OutputStream::Stdout, b"the end");
        let [stdout, _] = capture.finish().await.expect("written");
        let text = std::fs::read_to_string(&stdout.file).expect("text");
        assert!(stdout.truncated && text.len() < 2100, "{}", text.len());
        assert!(text.starts_with("0123456789abcde\n0123") && text.ends_with("the end"));
        let omitted = stdout.total_bytes
            - text
                .lines()
                .filter(|l| !l.contains('…'))
                .fold(0, |sum, line| sum + line.len() as u64 + 1);
        let said: u64 = text
            .split_once("[… ")
            .and_then(|(_, rest)| rest.split_once(' '))
            .and_then(|(number, _)| number.parse().ok())
            .expect("a number");
        assert!(said.abs_diff(omitted) < 40, "{said} {omitted}");
    }

    #[tokio::test]
    async fn capture_inline_tail_is_bounded_and_counts_omitted() {
        let dir = tempfile::tempdir().expect("a directory");
        let capture = bounded_capture(dir.path(), 10_000, 100);
        capture.write(OutputStream::Stdout, "äöü".repeat(100).as_bytes());
        let [stdout, stderr] = capture.finish().await.expect("written");
        assert_eq!(read_tail(&stderr, 10).expect("readable"), "");
        assert_eq!(read_tail(&stdout, 600).expect("readable"), "äöü".repeat(100));
        let text = read_tail(&stdout, 11).expect("readable");
        assert_eq!(text, "[… 590 bytes left out …]\nöüäöü");
    }

    #[tokio::test]
    async fn capture_overlapping_secrets_at_cut_are_redacted() {
        let dir = tempfile::tempdir().expect("a directory");
        let capture = bounded_capture(dir.path(), 52, 1);
        capture.write(OutputStream::Stdout, ("x".repeat(17) + &SECRET.repeat(3)).as_bytes());
        let [stdout, _] = capture.finish().await.expect("written");
        let kept = std::fs::read_to_string(&stdout.file).expect("text");
        assert!(!kept.contains("hunter"), "{kept}");
    }

    #[tokio::test]
    async fn output_is_taken_while_its_disk_gives_no_answer() {
        let dir = tempfile::tempdir().expect("a directory");
        let scratch = ScratchWork::default();
        let files = ["stdout.txt", "stderr.txt"].map(|name| dir.path().join(name));
        let stdout = files[0].clone();
        // Opening it waits for a reader.
        mknodat(CWD, &stdout, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let capture = Capture::new(dir.path(), files, &Redactor::default(), &scratch);
        let (taken, is_taken) = mpsc::channel();
        let reading = supervise::thread("reader", move || {
            let in_time = is_taken.recv_timeout(Duration::from_secs(10)).is_ok();
            (in_time, std::fs::read(&stdout))
        });
        capture.write(OutputStream::Stdout, b"one ");
        capture.write(OutputStream::Stdout, b"two");
        assert!(scratch.ended().now_or_never().is_none(), "it is still to be written");
        taken.send(()).ok();
        let [captured, _] = capture.finish().await.expect("written");
        let (in_time, text) = reading.expect("started").join().expect("no panic");
        assert!(in_time, "the writes waited for the disk");
        assert_eq!(text.expect("readable"), b"one two");
        assert_eq!(captured.total_bytes, 7);
        scratch.ended().await;
    }

    proptest! {
        #[test]
        fn capture_secret_split_at_any_cut_is_redacted(
            before in 0usize..80,
            times in 1usize..4,
            after in 0usize..80,
            cuts in proptest::collection::vec(0usize..200, 0..30),
            head in 0u64..60,
            tail in 1u64..60,
        ) {
            let dir = tempfile::tempdir().expect("a directory");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let _entered = runtime.enter();
            let capture = bounded_capture(dir.path(), head, tail);
            let text = "x".repeat(before) + &SECRET.repeat(times) + &"y".repeat(after);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                capture.write(OutputStream::Stdout, &text.as_bytes()[pair[0]..pair[1]]);
            }
            let [stdout, _] = capture.finish_blocking().expect("written");
            let kept = std::fs::read_to_string(&stdout.file).expect("text");
            for length in 3..SECRET.len() {
                prop_assert!(!kept.contains(&SECRET[..length]), "{kept}");
                prop_assert!(!kept.contains(&SECRET[SECRET.len() - length..]), "{kept}");
            }
            if !stdout.truncated {
                prop_assert_eq!(kept.matches('x').count(), before);
                prop_assert_eq!(kept.matches('y').count(), after);
            }
        }
    }
}
