//! The decision that the agent of a review leaves: a file whose first word is `approve` or `reject`.

use rollout_environment::{Environment, Failure};
use rollout_store::archive::{self, CapturedFile};

use super::variables::DECISION;
use crate::executor::{COPY_LIMIT, with_timeout};

/// Largest size of the file, bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// Longest reason that becomes part of an error, characters.
const MAX_REASON: usize = 1000;

/// A decision of a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// The change is kept.
    Approved,
    /// The change is not kept, for this reason.
    Rejected(String),
    /// There is no decision; with the reason.
    Unclear(String),
}

/// Reads the decision of the review that has just ended.
pub(super) async fn read(environment: &dyn Environment) -> Result<Decision, Failure> {
    let reading = async {
        let Some(stream) = environment.copy_from(DECISION).await? else {
            return Ok(CapturedFile::Missing);
        };
        Ok(archive::first_file(stream, MAX_BYTES).await)
    };
    let unclear = |why: &str| Decision::Unclear(format!("{DECISION} {why}"));
    Ok(match with_timeout(COPY_LIMIT, "reading the decision", reading).await? {
        CapturedFile::Found(bytes) => parse(&bytes),
        CapturedFile::Missing => unclear("is missing"),
        CapturedFile::NotRegular | CapturedFile::HardLink => unclear("is not a regular file"),
        CapturedFile::TooLarge(bytes) => unclear(&format!("has {bytes} bytes")),
        CapturedFile::NotReached => unclear("cannot be read"),
    })
}

fn parse(bytes: &[u8]) -> Decision {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let reason = rest.trim_start_matches(|c: char| c.is_whitespace() || ":.,-".contains(c));
    match word.to_lowercase().as_str() {
        "approve" | "approved" => Decision::Approved,
        "reject" | "rejected" => Decision::Rejected(reason.chars().take(MAX_REASON).collect()),
        _ => Decision::Unclear(format!("{DECISION} begins neither with `approve` nor `reject`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_is_the_first_word() {
        for text in ["approve", " Approved\nit is fine", "APPROVE: yes"] {
            assert_eq!(parse(text.as_bytes()), Decision::Approved, "{text}");
        }
        for text in ["reject: it does more", "Rejected\n\nit does more\n"] {
            assert_eq!(parse(text.as_bytes()), Decision::Rejected("it does more".into()), "{text}");
        }
        for text in ["", "I approve", "approver", "\u{ff}"] {
            assert!(matches!(parse(text.as_bytes()), Decision::Unclear(_)), "{text}");
        }
    }
}
