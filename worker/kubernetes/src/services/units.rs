//! Durations, sizes and words of commands in a compose file.

use std::time::Duration;

use serde_json::Value;

use super::table::scalar;

/// A duration such as `1m30s` or `200ms`.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    let text = scalar(value)?;
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text.as_str(), 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let amount: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += amount * unit;
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|_| !text.is_empty())
}

/// A size such as `64m`, `1.5gb` or a number of bytes.
pub(super) fn bytes(value: &Value) -> Option<u64> {
    let text = scalar(value)?.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let amount: f64 = text[..digits].parse().ok()?;
    let unit = text[digits..].trim().trim_end_matches('b').trim_end_matches('i');
    let power = match unit {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    let bytes = amount * 1024f64.powi(power);
    (bytes.is_finite() && bytes >= 1.0).then_some(bytes as u64)
}

/// The words of a command: a list, or a text that is split as a shell does, without expansions.
pub(super) fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(items) => items.iter().map(scalar).collect(),
        other => split(&scalar(other)?),
    }
}

fn split(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => loop {
                match chars.next()? {
                    '\'' => {
                        word.get_or_insert_default();
                        break;
                    }
                    c => word.get_or_insert_default().push(c),
                }
            },
            '"' => loop {
                match chars.next()? {
                    '"' => {
                        word.get_or_insert_default();
                        break;
                    }
                    '\\' => {
                        let escaped = chars.next()?;
                        let word = word.get_or_insert_default();
                        if !matches!(escaped, '"' | '\\' | '$' | '`') {
                            word.push('\\');
                        }
                        word.push(escaped);
                    }
                    c => word.get_or_insert_default().push(c),
                }
            },
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn compose_durations_and_sizes_are_read() {
        for (text, millis) in [("1m30s", 90_000), ("200ms", 200), ("1.5s", 1500), ("0", 0)] {
            assert_eq!(duration(&json!(text)), Some(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "5", "s", "1x", "-1s"] {
            assert_eq!(duration(&json!(wrong)), None, "{wrong}");
        }
        for (text, size) in [("64m", 64 << 20), ("1.5gb", 3 << 29), ("10b", 10), ("2Ki", 2048)] {
            assert_eq!(bytes(&json!(text)), Some(size), "{text}");
        }
        assert_eq!(bytes(&json!(4096)), Some(4096));
        for wrong in ["", "m", "1x", "-1", "0"] {
            assert_eq!(bytes(&json!(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn compose_command_is_split_into_words() {
        let command = json!(r#"sh -c "echo \"a b\" 'c'" '' x\ y"#);
        let expected = ["sh", "-c", "echo \"a b\" 'c'", "", "x y"].map(str::to_owned);
        assert_eq!(words(&command), Some(expected.to_vec()));
        assert_eq!(words(&json!(["a b", 1])), Some(vec!["a b".to_owned(), "1".to_owned()]));
        assert_eq!(words(&json!("'open")), None);
    }
}
