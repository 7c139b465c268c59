//! The end of a script's standard error, for messages.

use rollout_protocol::limits;

use super::capture::{Capture, CapturedStream, read_tail};

/// Bytes of standard error that are read: a line may be long.
const READ_BYTES: usize = 16 * 1024;

/// Lines in a message: as many as `curl` prints about a certificate that it does not trust, and one.
const LINES: usize = 6;

/// Longest excerpt in a message.
const BYTES: usize = 800;

/// Shortest part of a line that is worth its place.
const MIN_PART_BYTES: usize = 40;

/// Between two lines of an excerpt.
const SEPARATOR: &str = " / ";

/// The last lines of a script's standard error, on one line.
pub async fn stderr_summary(capture: &Capture) -> String {
    let read = |[_, stderr]: [CapturedStream; 2]| read_tail(&stderr, READ_BYTES);
    let Ok(text) = capture.finish_and_read(read).await else { return String::new() };
    let said = last_lines(whole_lines(&text));
    // A shell quotes a CR or prints it before its message; progress bars have others.
    let has_cr = ["$'\\r'", "^M", "\r:", "\r'"].iter().any(|shown| said.contains(shown));
    let note = if has_cr { " (a line of a script ends with CR, as on Windows)" } else { "" };
    said.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect::<String>() + note
}

/// The end of a captured file without the line about what was left out, and without a line whose
/// beginning is not there, unless there is no other.
fn whole_lines(text: &str) -> &str {
    if !text.starts_with("[…") {
        return text;
    }
    let (_, rest) = text.split_once('\n').unwrap_or_default();
    let whole = rest.split_once('\n').map(|(_, whole)| whole);
    whole.filter(|whole| !whole.trim().is_empty()).unwrap_or(rest)
}

/// A line; of a long one that was written over, such as progress, only what it became.
fn final_part(line: &str) -> &str {
    match line.rsplit_once('\r') {
        Some((_, last)) if line.len() > BYTES && !last.trim().is_empty() => last.trim(),
        _ => line,
    }
}

/// The last lines of a text. One that is too long is cut at its end.
fn last_lines(text: &str) -> String {
    let lines = text.lines().rev().map(|line| final_part(line.trim()));
    let lines = lines.filter(|line| !line.is_empty());
    let (mut shown, mut room) = (Vec::new(), BYTES);
    for line in lines.take(LINES) {
        if line.len() > room && room < MIN_PART_BYTES {
            break;
        }
        let line = limits::shorten(line.to_owned(), room);
        room = room.saturating_sub(line.len() + SEPARATOR.len());
        shown.push(line);
    }
    shown.reverse();
    shown.join(SEPARATOR)
}

#[cfg(test)]
mod tests {
    use rollout_base::secrets::Redactor;
    use rollout_environment::{OutputSink as _, OutputStream};

    use super::*;
    use crate::executor::ScratchWork;

    /// The message of `curl` about a certificate that it does not trust.
    const CURL: &str = "\
curl: (60) SSL certificate problem: unable to get local issuer certificate
More details here: https://curl.se/docs/sslcerts.html

curl failed to verify the legitimacy of the server and therefore could not
establish a secure connection to it. To learn more about this situation and
how to fix it, please visit the webpage mentioned above.
";

    /// The excerpt of this standard error.
    async fn summary(said: &str) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let files = ["stdout.txt", "stderr.txt"].map(|name| dir.path().join(name));
        let (redactor, work) = (Redactor::default(), ScratchWork::default());
        let capture = Capture::for_quotes(dir.path(), files, &redactor, &work);
        capture.write(OutputStream::Stderr, said.as_bytes());
        stderr_summary(&capture).await
    }

    #[tokio::test]
    async fn summary_of_standard_error_explains_carriage_returns() {
        let note = " (a line of a script ends with CR, as on Windows)";
        for (said, has_note) in [
            ("/tests/test.sh: line 2: $'\\r': command not found\n", true),
            ("bash: /bin/bash^M: bad interpreter\n", true),
            ("set: -\r: invalid option\n", true),
            (" 10%\r 20%\r100%\n", false),
            ("oops\r\n", false),
        ] {
            assert_eq!(summary(said).await.ends_with(note), has_note, "{said:?}");
        }
    }

    #[tokio::test]
    async fn summary_of_standard_error_has_the_cause_that_curl_names() {
        let noise = "downloading the next part of the agent\n".repeat(1000);
        let last = "cannot install the agent: curl failed with code 60: curl: (60) SSL certificate \
                    problem: unable to get local issuer certificate\n";
        for said in [CURL.to_owned(), format!("{noise}{CURL}"), format!("{noise}{CURL}{last}")] {
            let summary = summary(&said).await;
            let parts: Vec<&str> = summary.split(SEPARATOR).collect();
            assert!(parts.iter().all(|part| said.lines().any(|line| line == *part)), "{summary}");
            assert!(parts.contains(&CURL.lines().next().expect("a line")), "{summary}");
            assert_eq!(parts.last(), said.lines().next_back().as_ref(), "{summary}");
        }
    }

    #[tokio::test]
    async fn summary_of_standard_error_cuts_a_long_line_at_its_end() {
        let long = format!("npm error {}", "ä".repeat(3000));
        for (said, begin) in [
            (format!("{long}\n"), "npm error ää"),
            (format!("before\n{long}\n"), "npm error ää"),
            (format!("{long}\nafter\n"), "npm error ää"),
            (format!("{}{long}\n", "x".repeat(READ_BYTES)), "xxx"),
        ] {
            let summary = summary(&said).await;
            let (shown, after) = summary.split_once(" …").expect("a cut line");
            assert!(shown.starts_with(begin), "{shown}");
            assert!(summary.len() <= BYTES, "{}", summary.len());
            assert!(after.is_empty() || after == " / after", "{after}");
        }
    }

    #[tokio::test]
    async fn summary_of_standard_error_has_no_control_characters_and_few_lines() {
        let lines = |numbers: std::ops::Range<u32>, mark: &str| -> Vec<String> {
            numbers.map(|number| format!("{mark}[1mline {number}")).collect()
        };
        let said = lines(0..100, "\u{1b}").join("\n");
        assert_eq!(summary(&said).await, lines(94..100, "\u{fffd}").join(SEPARATOR));
        assert_eq!(summary("\n \n").await, "");
    }
}
