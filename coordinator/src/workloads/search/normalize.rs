//! Error texts without the parts that differ between two runs of one search: times, durations,
//! addresses and identifiers created per execution. The full text stays in `eval_result.json` and
//! in the record of the execution.

use std::sync::LazyLock;

use regex::Regex;

use super::manifest::SearchEvalError;

/// Patterns and their replacements, applied in this order.
const PATTERNS: &[(&str, &str)] = &[
    // Dates with times, with or without a zone: 2026-01-31T10:20:30.5Z.
    (
        r"\b\d{4}[-/]\d{2}[-/]\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2})\b)?",
        "<time>",
    ),
    (r"\b\d{4}-\d{2}-\d{2}\b", "<time>"),
    // Thu Jan 31 10:20:30 2026, and times of day.
    (
        r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [A-Za-z0-9]{1,3} {1,2}[A-Za-z0-9]{1,3} [\d: ]*\d\d:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{3,4})?(?: \d{4})?",
        "<time>",
    ),
    (r"\b\d{1,3}:\d{2}:\d{2}(?:[.,]\d+)?\b", "<time>"),
    // UUIDs, memory addresses, long hexadecimal numbers.
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"\b0x[0-9a-fA-F]{4,}\b", "<id>"),
    (r"\b(?:[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{10,}\b", "<id>"),
    // Names of temporary files from mktemp and Python.
    (r"/tmp\.[A-Za-z0-9]{6,}\b", "/<id>"),
    (r"/tmp[a-z0-9_]{8}\b", "/<id>"),
    // Ports and process numbers.
    (r"\b(127\.0\.0\.1|localhost|\[::1\]):\d{4,5}\b", "$1:<id>"),
    (r"(?i)\b(pid|port|process|thread)([ =:#]+)\d+\b", "$1$2<id>"),
    (r"(line \d+:) +\d+ (Killed|Terminated|Aborted|Segmentation fault|Hangup)", "$1 <id> $2"),
    // Durations: 0.12s, 3 ms, 1m2.5s, 2 minutes.
    (r"\b(?:\d+h)?\d+m\d+(?:[.,]\d+)?s\b", "<time>"),
    (
        r"\b\d+(?:[.,]\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?|msecs?|milliseconds?|mins?|minutes?|hours?)\b",
        "<time>",
    ),
];

static COMPILED_PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let compile = |(pattern, by): &(&str, &'static str)| {
        (Regex::new(pattern).expect("the patterns are checked by a test"), *by)
    };
    PATTERNS.iter().map(compile).collect()
});

/// Replaces times and identifiers in a text.
pub fn normalize_text(text: &str) -> String {
    COMPILED_PATTERNS
        .iter()
        .fold(text.to_owned(), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned())
}

/// Normalizes an error for the manifest. The message of a time limit is kept: the search writes it,
/// and the limit in it is the same in every run.
pub fn normalize_error(error: SearchEvalError) -> SearchEvalError {
    let message =
        if error.timed_out { error.message.clone() } else { normalize_text(&error.message) };
    SearchEvalError { message, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_with_times_and_ids_is_masked() {
        for (text, expected) in [
            ("1 failed, 2 passed in 0.12s", "1 failed, 2 passed in <time>"),
            ("real 1m2.34s", "real <time>"),
            ("took 3 ms, then 2 minutes", "took <time>, then <time>"),
            ("2026-01-31T10:20:30.5Z ERROR no", "<time> ERROR no"),
            ("2026-01-31 10:20:30,123 - x", "<time> - x"),
            ("[10:20:30] done", "[<time>] done"),
            ("Sat Jan 31 10:20:30 UTC 2026: no", "<time>: no"),
            ("Tue Dec  1 02:30:40 UTC 2026: no", "<time>: no"),
            ("Tue Dec  1 02:30:40 2026: no", "<time>: no"),
            ("Tue Dec  1 02:30:40 AM UTC 2026: no", "<time>: no"),
            ("<f at 0x7f3a2b1c>", "<f at <id>>"),
            ("container 3f9a8b7c6d5e died", "container <id> died"),
            ("6a2f41a3-c54c-4a1b-8f0e-0123456789ab", "<id>"),
            ("cannot open /tmp/tmp.aB3dE6gH/x", "cannot open /tmp/<id>/x"),
            ("/tmp/tmpab12_cde: no", "/tmp/<id>: no"),
            ("refused by 127.0.0.1:45123", "refused by 127.0.0.1:<id>"),
            ("worker pid 4711 left", "worker pid <id> left"),
            ("x.sh: line 3:  4711 Killed  y", "x.sh: line 3: <id> Killed  y"),
        ] {
            assert_eq!(normalize_text(text), expected);
        }
    }

    #[test]
    fn error_text_without_times_or_ids_is_unchanged() {
        for text in [
            "tests: the command ended with code 1: 3 of 12 steps failed",
            "no such file: data/2026/input-12.csv",
            "expected 12 rows, found 11",
            "version 1.2.3 of deadbeef",
            "assertion failed at line 120",
            "effaced facade",
        ] {
            assert_eq!(normalize_text(text), text);
        }
        let message = "sweep: the command exceeded the eval's time limit of 8s".to_owned();
        let limit = SearchEvalError {
            error_type: "sweep_timeout".to_owned(),
            message,
            timed_out: true,
            infrastructure: false,
        };
        assert_eq!(normalize_error(limit.clone()), limit);
    }
}
