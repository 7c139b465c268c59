//! Steps of a build with BuildKit.

use std::collections::{HashMap, HashSet};

use data_encoding::BASE64;
use prost::Message as _;

use super::log::{ImageBuildLog, LogTail};

/// The standard error of a command.
const STDERR: i64 = 2;

/// Lines of standard error that are shown although they are not among the last lines of the output.
const ERROR_LINES: usize = 10;

/// Progress of a build, reduced to the fields that are shown.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, repeated, tag = "1")]
    vertexes: Vec<Vertex>,
    #[prost(message, repeated, tag = "3")]
    logs: Vec<VertexLog>,
}

/// A step.
#[derive(Clone, PartialEq, prost::Message)]
struct Vertex {
    #[prost(string, tag = "1")]
    digest: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(bool, tag = "4")]
    cached: bool,
    #[prost(message, optional, tag = "5")]
    started: Option<BuildTimestamp>,
    #[prost(message, optional, tag = "6")]
    completed: Option<BuildTimestamp>,
    #[prost(string, tag = "7")]
    error: String,
}

/// Output of a step.
#[derive(Clone, PartialEq, prost::Message)]
struct VertexLog {
    #[prost(string, tag = "1")]
    vertex: String,
    #[prost(int64, tag = "3")]
    stream: i64,
    #[prost(bytes = "vec", tag = "4")]
    msg: Vec<u8>,
}

/// A point in time.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct BuildTimestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The steps so far.
#[derive(Debug, Default)]
pub(super) struct BuildSteps {
    steps: Vec<BuildStep>,
    by_digest: HashMap<String, usize>,
}

/// One step.
#[derive(Debug, Default)]
pub(super) struct BuildStep {
    /// Its position and instruction, such as `[2/3] RUN make`.
    pub(super) name: String,
    /// The reason why it failed; empty when it did not.
    pub(super) error: String,
    tail: LogTail,
    errors: LogTail,
    begun: bool,
    ended: bool,
    line_open: bool,
}

impl BuildStep {
    /// The last lines of its output. Lines of standard error are included even if they were printed
    /// long before the end.
    pub(super) fn printed(&self) -> String {
        let (mut text, errors) = (self.tail.text(), self.errors.text());
        let lines: Vec<&str> = errors.lines().rev().take(ERROR_LINES).collect();
        let shown: HashSet<&str> = text.lines().collect();
        let lost = lines.into_iter().rev().filter(|line| !shown.contains(line));
        let lost = lost.collect::<Vec<_>>().join("\n");
        if !lost.is_empty() {
            text = format!("{text}\n{lost}");
        }
        text
    }
}

impl BuildSteps {
    /// Processes one message of the builder and writes new output to the log. Messages that cannot
    /// be read are skipped.
    pub(super) fn read_status(&mut self, image: &str, aux: &str, log: &mut ImageBuildLog) {
        let Ok(bytes) = BASE64.decode(aux.as_bytes()) else { return };
        let Ok(status) = StatusResponse::decode(bytes.as_slice()) else { return };
        for vertex in status.vertexes {
            self.vertex(image, vertex, log);
        }
        for entry in status.logs {
            self.output(&entry, log);
        }
    }

    /// The step that failed, given the build's error. Steps that were cancelled because of it do
    /// not count.
    pub(super) fn failed(&self, error: &str) -> Option<&BuildStep> {
        let failed = || self.steps.iter().filter(|step| !step.error.is_empty());
        let given_up = |step: &&BuildStep| step.error.contains("context canceled");
        failed()
            .find(|step| error.contains(&step.error) || step.error.contains(error))
            .or_else(|| failed().find(|step| !given_up(step)))
    }

    fn number(&mut self, digest: &str) -> usize {
        if let Some(number) = self.by_digest.get(digest) {
            return *number;
        }
        self.by_digest.insert(digest.to_owned(), self.steps.len());
        self.steps.push(BuildStep::default());
        self.steps.len() - 1
    }

    fn vertex(&mut self, image: &str, vertex: Vertex, log: &mut ImageBuildLog) {
        let number = self.number(&vertex.digest);
        let step = &mut self.steps[number];
        if !vertex.name.is_empty() {
            step.name = vertex.name;
        }
        let shown = number + 1;
        if vertex.started.is_some() && !step.begun {
            step.begun = true;
            log.add(&format!("#{shown} {}\n", step.name));
            if !step.name.starts_with("[internal]") {
                tracing::info!(image, step = step.name, "building");
            }
        }
        let Some(completed) = vertex.completed.filter(|_| !step.ended) else { return };
        step.ended = true;
        let end = if !vertex.error.is_empty() {
            step.error = vertex.error;
            format!("ERROR: {}", step.error)
        } else if vertex.cached {
            "CACHED".to_owned()
        } else {
            format!("DONE {:.1} s", seconds(vertex.started, completed))
        };
        tracing::debug!(image, step = step.name, end, "step ended");
        let gap = if std::mem::take(&mut step.line_open) { "\n" } else { "" };
        log.add(&format!("{gap}#{shown} {end}\n"));
    }

    fn output(&mut self, entry: &VertexLog, log: &mut ImageBuildLog) {
        let number = self.number(&entry.vertex);
        let step = &mut self.steps[number];
        step.tail.add(&entry.msg);
        if entry.stream == STDERR {
            step.errors.add(&entry.msg);
        }
        let text = String::from_utf8_lossy(&entry.msg);
        for line in text.split_inclusive('\n') {
            if !step.line_open {
                log.add(&format!("#{} ", number + 1));
            }
            log.add(line);
            step.line_open = !line.ends_with('\n');
        }
    }
}

fn seconds(from: Option<BuildTimestamp>, to: BuildTimestamp) -> f64 {
    let at = |time: BuildTimestamp| time.seconds as f64 + f64::from(time.nanos) / 1e9;
    from.map_or(0.0, |from| (at(to) - at(from)).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(steps: &mut BuildSteps, log: &mut ImageBuildLog, status: &StatusResponse) {
        steps.read_status("image", &BASE64.encode(&status.encode_to_vec()), log);
    }

    fn vertex(digest: &str, name: &str, error: &str, ended: bool) -> Vertex {
        let time = Some(BuildTimestamp { seconds: 1, nanos: 0 });
        Vertex {
            digest: digest.to_owned(),
            name: name.to_owned(),
            cached: false,
            started: time,
            completed: time.filter(|_| ended),
            error: error.to_owned(),
        }
    }

    #[test]
    fn build_step_failed_reports_its_output() {
        let (mut steps, mut log) = (BuildSteps::default(), ImageBuildLog::default());
        let begun =
            vec![vertex("a", "[1/3] FROM x", "", true), vertex("b", "[2/3] RUN y", "", false)];
        take(&mut steps, &mut log, &StatusResponse { vertexes: begun, logs: Vec::new() });
        let logs = [("b", "one\ntw"), ("b", "o\n"), ("c", "other\n")].map(|(vertex, msg)| {
            VertexLog { vertex: vertex.to_owned(), stream: 1, msg: msg.into() }
        });
        take(&mut steps, &mut log, &StatusResponse { vertexes: Vec::new(), logs: logs.to_vec() });
        let ended = vec![
            vertex("c", "[other 1/1] RUN z", "context canceled", true),
            vertex("b", "[2/3] RUN y", "exit code: 3", true),
        ];
        take(&mut steps, &mut log, &StatusResponse { vertexes: ended, logs: Vec::new() });
        steps.read_status("image", "no base64", &mut log);
        let failed = steps.failed("executor failed: exit code: 3").expect("a failed step");
        assert_eq!((failed.name.as_str(), failed.printed().as_str()), ("[2/3] RUN y", "one\ntwo"));
        let entry = |stream, text: String| VertexLog {
            vertex: "b".to_owned(),
            stream,
            msg: text.into_bytes(),
        };
        let logs = vec![entry(STDERR, "the reason\n".to_owned()), entry(1, "much\n".repeat(4000))];
        take(&mut steps, &mut log, &StatusResponse { vertexes: Vec::new(), logs });
        let printed = steps.failed("exit code: 3").expect("a failed step").printed();
        assert!(printed.ends_with("much\nthe reason"), "{printed}");
        let log = String::from_utf8(log.into_text()).expect("a text");
        for line in
            ["#1 [1/3] FROM x", "#1 DONE 0.0 s", "#2 two", "#3 other", "#2 ERROR: exit code: 3"]
        {
            assert!(log.lines().any(|found| found == line), "{line}: {log}");
        }
    }
}
