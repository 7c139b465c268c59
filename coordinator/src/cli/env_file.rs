//! Files of variables (`--env-file`), one `NAME=VALUE` a line.

use std::path::Path;

use rollout_protocol::limits::CONFIG_FILE_BYTES;
use rollout_protocol::template::is_variable_name;
use rollout_worker::regular_file;

/// The variables of a file, in its order.
///
/// # Errors
/// The file cannot be read, or a line is not `NAME=VALUE`.
pub(super) fn read(file: &Path) -> Result<Vec<(String, String)>, String> {
    let shown = file.display();
    let cannot = |error: std::io::Error| format!("cannot read the variables in {shown}: {error}");
    let text = regular_file::read_any_text(file, CONFIG_FILE_BYTES).map_err(cannot)?;
    parse(&text).map_err(|line| {
        format!("cannot read the variables in {shown}: line {line} is not NAME=VALUE")
    })
}

/// Parses variables. The error is the number of a line that is not `NAME=VALUE`.
fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut variables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let rest = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = rest.split_once('=').ok_or(index + 1)?;
        let name = name.trim();
        let value = self::value(value.trim()).filter(|value| !value.contains('\0'));
        match value.filter(|_| is_variable_name(name)) {
            Some(value) => variables.push((name.to_owned(), value)),
            None => return Err(index + 1),
        }
    }
    Ok(variables)
}

/// A value without its quotes. Single quotes keep every character literal. In double quotes `\n` is
/// a line break, and a backslash makes any other character literal. An unquoted value ends before a
/// comment.
fn value(text: &str) -> Option<String> {
    let rest_is_comment = |rest: &str| {
        let rest = rest.trim_start();
        rest.is_empty() || rest.starts_with('#')
    };
    if let Some(quoted) = text.strip_prefix('\'') {
        let (value, rest) = quoted.split_once('\'')?;
        return rest_is_comment(rest).then(|| value.to_owned());
    }
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(" #").unwrap_or(text.len());
        return Some(text[..end].trim_end().to_owned());
    };
    let mut value = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => return rest_is_comment(chars.as_str()).then_some(value),
            '\\' => match chars.next()? {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_file_values_are_read_with_and_without_quotes() {
        let text = "# a comment\n\nA=1\nexport B = two words # not this\nC='a # b'\n\
                    D=\"x\\\"y\\nz\" # nor this\nE=\nF=a#b\n";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "a # b"),
            ("D", "x\"y\nz"),
            ("E", ""),
            ("F", "a#b"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse(text), Ok(expected.to_vec()));
    }

    #[test]
    fn env_file_malformed_line_is_reported_by_number() {
        for bad in ["A", "1A=x", "A='x", "A=\"x", "A='x' y", "A B=x"] {
            assert_eq!(parse(&format!("OK=1\n{bad}\n")), Err(2), "{bad}");
        }
        let missing = read(Path::new("/no/such/file")).expect_err("no file");
        assert!(missing.starts_with("cannot read the variables in /no/such/file: "), "{missing}");
    }

    #[test]
    fn env_file_without_end_is_refused() {
        let refused = read(Path::new("/dev/zero")).expect_err("too large");
        assert!(refused.ends_with("it has more than 4194304 bytes"), "{refused}");
    }
}
