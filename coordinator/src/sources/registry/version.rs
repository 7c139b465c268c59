//! Choice of a version if none is given.

use std::cmp::Ordering;

/// Picks the default version: `head`, else the highest number, else the last in alphabetical order.
/// Entries without a version rank lowest.
pub(super) fn latest<'a, T>(
    entries: impl Iterator<Item = &'a T>,
    version: impl Fn(&T) -> Option<&str>,
) -> Option<&'a T> {
    entries.max_by(|a, b| compare(version(a), version(b)))
}

fn compare(a: Option<&str>, b: Option<&str>) -> Ordering {
    let rank = |version: Option<&str>| match version {
        None => 0,
        Some(text) if text.eq_ignore_ascii_case("head") => 3,
        Some(text) if VersionNumber::parse(text).is_some() => 2,
        Some(_) => 1,
    };
    rank(a).cmp(&rank(b)).then_with(|| {
        match (a.and_then(VersionNumber::parse), b.and_then(VersionNumber::parse)) {
            (Some(one), Some(other)) => one.cmp(&other).then_with(|| a.cmp(&b)),
            _ => a.cmp(&b),
        }
    })
}

/// A version such as `2.0`, `v1.10.3` or `1.0rc1`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VersionNumber {
    release: Vec<u64>,
    /// Text after the numbers: no suffix ranks above any suffix except `post`.
    suffix: (u8, String, u64),
}

impl VersionNumber {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let numbers = numbers.trim_end_matches('.');
        let release: Option<Vec<u64>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        let mut release = release?;
        while release.len() > 1 && release.last() == Some(&0) {
            release.pop();
        }
        Some(Self { release, suffix: Self::suffix(rest)? })
    }

    fn suffix(rest: &str) -> Option<(u8, String, u64)> {
        let rest = rest.trim_start_matches(['.', '-', '_']).to_ascii_lowercase();
        if rest.is_empty() || rest.starts_with('+') {
            return Some((4, String::new(), 0));
        }
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (word, number) = rest.split_at(end);
        let digits: String = number.chars().filter(char::is_ascii_digit).collect();
        let rank = match word {
            "dev" => 0,
            "a" | "alpha" => 1,
            "b" | "beta" => 2,
            "rc" | "c" | "pre" | "preview" => 3,
            "post" | "rev" | "r" => 5,
            _ => return None,
        };
        Some((rank, word.to_owned(), digits.parse().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dataset_version_absent_resolves_to_latest() {
        for (versions, expected) in [
            (&["1.0", "head", "9.9"][..], "head"),
            (&["1.9", "1.10", "1.2"], "1.10"),
            (&["2.0rc1", "2.0", "2.0.dev3"], "2.0"),
            (&["2.0", "2.0.post1"], "2.0.post1"),
            (&["v1", "1.0.1"], "1.0.1"),
            (&["zeta", "0.1"], "0.1"),
            (&["alpha", "beta"], "beta"),
            (&["1.0", "verified"], "1.0"),
        ] {
            let chosen = latest(versions.iter(), |version| Some(version)).copied();
            assert_eq!(chosen, Some(expected), "{versions:?}");
        }
        let entries = [None, Some("0.1")];
        assert_eq!(latest(entries.iter(), |version| *version), Some(&Some("0.1")));
    }
}
