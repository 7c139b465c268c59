//! Patterns of names, as shells have them. What a pattern is held against (a name, a path, each
//! component of one) is for whoever asks: there are as many rules for that as there are programs.

/// What turns a class around: `[^a]` everywhere, `[!a]` in shells and what is made after them.
pub const SHELL: &[u8] = b"!^";

/// What turns a class around in Go's patterns, which Dockerfiles have.
pub const GO: &[u8] = b"^";

/// Whether a pattern matches a text, characters or bytes, from its beginning to its end: `*` for any
/// number of them, `?` for one, `[a-z]` for one of several, `\x` for `x`. A class that never ends is
/// its own text. Goes back only to the last `*`: the work is bounded by the product of the lengths.
pub fn matches<T>(pattern: &[T], text: &[T], negations: &[u8]) -> bool
where
    T: Copy + PartialOrd + From<u8>,
{
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stood, and where what it takes ends.
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&T::from(b'*')) {
            star = Some((p, t));
            p += 1;
        } else if let Some(length) = one(&pattern[p..], text[t], negations) {
            (p, t) = (p + length, t + 1);
        } else if let Some((at, end)) = star {
            star = Some((at, end + 1));
            (p, t) = (at + 1, end + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|rest| *rest == T::from(b'*'))
}

/// [`matches()`] for texts, by their characters.
pub fn matches_text(pattern: &str, text: &str, negations: &[u8]) -> bool {
    let [pattern, text]: [Vec<char>; 2] = [pattern, text].map(|text| text.chars().collect());
    matches(&pattern, &text, negations)
}

/// The length of the pattern's first element when it matches `it`.
fn one<T>(pattern: &[T], it: T, negations: &[u8]) -> Option<usize>
where
    T: Copy + PartialOrd + From<u8>,
{
    let first = *pattern.first()?;
    if first == T::from(b'?') {
        return Some(1);
    }
    if first == T::from(b'\\')
        && let Some(literal) = pattern.get(1)
    {
        return (*literal == it).then_some(2);
    }
    if first == T::from(b'[')
        && let Some((length, holds)) = class(&pattern[1..], it, negations)
    {
        return holds.then_some(length + 1);
    }
    (first == it).then_some(1)
}

/// The length of a class behind its `[`, and whether it holds `it`; nothing when it never ends.
fn class<T>(pattern: &[T], it: T, negations: &[u8]) -> Option<(usize, bool)>
where
    T: Copy + PartialOrd + From<u8>,
{
    let first = pattern.first()?;
    let negated = negations.iter().any(|sign| T::from(*sign) == *first);
    let begin = usize::from(negated);
    // A `]` that comes first stands for itself.
    let rest = pattern.get(begin + 1..)?;
    let end = begin + 1 + rest.iter().position(|c| *c == T::from(b']'))?;
    let (mut members, mut found) = (&pattern[begin..end], false);
    while let Some((low, after)) = members.split_first() {
        members = match after {
            [dash, high, after @ ..] if *dash == T::from(b'-') => {
                found |= (*low..=*high).contains(&it);
                after
            }
            _ => {
                found |= *low == it;
                after
            }
        };
    }
    Some((end + 1, found != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("hello", "hello", true),
            ("hello", "hello-world", false),
            ("hello*", "hello-world", true),
            ("*world", "hello-world", true),
            ("*o*o*", "hello-world", true),
            ("*x*", "hello-world", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[!ae]llo", "hallo", false),
            ("h[^ae]llo", "hxllo", true),
            ("task-[0-9]", "task-7", true),
            ("task-[0-9]", "task-x", false),
            ("[0-9a-]", "-", true),
            ("a[", "a[", true),
            ("[]]", "]", true),
            ("[]x]", "x", true),
            ("[a", "a", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("\\", "\\", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("ä?", "äö", true),
        ] {
            assert_eq!(matches_text(pattern, text, SHELL), expected, "{pattern} {text}");
        }
        assert!(matches_text("[!a]", "!", GO) && !matches_text("[!a]", "b", GO));
        assert!(matches(b"a?\xff", b"ab\xff", SHELL));
    }

    #[test]
    fn the_work_is_bounded() {
        let long = "a".repeat(5000);
        let pattern = "*a".repeat(50).replace("a*", "a*a*");
        assert!(!matches_text(&pattern, &format!("{long}b"), SHELL));
    }
}
