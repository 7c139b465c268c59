//! Reasons why a compose file cannot become a pod, each with its key.

use std::cell::RefCell;

use rollout_environment::{ComposeFile, Failure, FailureKind};
use rollout_protocol::limits;

/// Problems that a failure names; the others are only counted.
const MAX_NAMED: usize = 5;

/// Unsupported keys that are recorded: a file may have any number of them.
const MAX_RECORDED: usize = 100;

/// Longest text of a problem in bytes.
const MAX_TEXT_BYTES: usize = 1000;

/// The problems of a file, in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<FoundProblems>);

#[derive(Debug, Default)]
struct FoundProblems {
    /// The first for which the file is broken.
    broken: Option<String>,
    unsupported: Vec<String>,
}

impl Problems {
    /// A key that pods do not support.
    pub(super) fn unsupported(&self, key: &str, why: &str) {
        let unsupported = &mut self.0.borrow_mut().unsupported;
        if unsupported.len() < MAX_RECORDED {
            let text = text(key, why);
            if !unsupported.contains(&text) {
                unsupported.push(text);
            }
        }
    }

    /// A key that no program could use.
    pub(super) fn invalid(&self, key: &str, why: &str) {
        self.0.borrow_mut().broken.get_or_insert_with(|| text(key, why));
    }

    /// Fails if there are any. A broken file comes first.
    pub(super) fn into_result(self, file: &ComposeFile) -> Result<(), Failure> {
        let FoundProblems { broken, unsupported: mut texts } = self.0.into_inner();
        if let Some(broken) = broken {
            return Err(failure(file, FailureKind::Refused, &broken));
        }
        if texts.is_empty() {
            return Ok(());
        }
        let found = texts.len();
        texts.truncate(MAX_NAMED);
        if found > MAX_NAMED {
            let least = if found == MAX_RECORDED { "at least " } else { "" };
            texts.push(format!("and {least}{} more", found - MAX_NAMED));
        }
        Err(failure(file, FailureKind::Unsupported, &texts.join("; ")))
    }
}

/// The text of a problem of a key.
pub(super) fn text(key: &str, why: &str) -> String {
    let text = if key.is_empty() { why.to_owned() } else { format!("`{key}`: {why}") };
    limits::shorten(text, MAX_TEXT_BYTES)
}

/// The failure of a file.
pub(super) fn failure(file: &ComposeFile, kind: FailureKind, why: &str) -> Failure {
    Failure::new(kind, format!("{}: {why}", file.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(add: impl Fn(&Problems)) -> Failure {
        let problems = Problems::default();
        add(&problems);
        let file = ComposeFile::of_task("/", "c");
        problems.into_result(&file).expect_err("there are some")
    }

    #[test]
    fn unsupported_keys_are_counted_once_and_up_to_limit() {
        let keys = |count: usize| {
            move |problems: &Problems| {
                for key in (0..count).chain(0..count) {
                    problems.unsupported(&key.to_string(), "no");
                }
            }
        };
        assert!(result(keys(7)).message.ends_with("; `4`: no; and 2 more"));
        let many = result(keys(100_000)).message;
        assert!(many.ends_with("; and at least 95 more"), "{many}");
    }

    #[test]
    fn broken_file_comes_first_after_any_number_of_unsupported_keys() {
        let failure = result(|problems| {
            for key in 0..1000 {
                problems.unsupported(&key.to_string(), "no");
            }
            problems.invalid("a", &"b".repeat(1_000_000));
        });
        assert_eq!(failure.kind, FailureKind::Refused);
        assert!(failure.message.starts_with("c: `a`: bbb") && failure.message.len() < 1100);
    }
}
