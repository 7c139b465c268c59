//! Files of variables (`--env-file`): `NAME=VALUE`, each on a line of its own; quoted values may have
//! several lines. A byte order mark is ignored.

use std::path::Path;

use rollout_base::regular_file;
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use rollout_protocol::template::is_variable_name;

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

/// Parses variables. The error is the number of a line that is not `NAME=VALUE`; of a quoted value
/// without an end, the first.
fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (mut variables, mut line) = (Vec::new(), 1);
    while !rest.is_empty() {
        let next = rest.trim_start_matches([' ', '\t']);
        let (assignment, after) = if next.is_empty() || next.starts_with(['#', '\r', '\n']) {
            (None, next)
        } else {
            let (variable, after) = assignment(next).ok_or(line)?;
            (Some(variable), after)
        };
        // What follows a value is a comment.
        let after = after.split_once('\n').map_or("", |(_, after)| after);
        let read = &rest[..rest.len() - after.len()];
        variables.extend(assignment);
        line += read.matches('\n').count();
        rest = after;
    }
    Ok(variables)
}

/// Reads `NAME=VALUE` at the beginning of `text`. Returns what follows it.
fn assignment(text: &str) -> Option<((String, String), &str)> {
    let text = text.strip_prefix("export ").unwrap_or(text);
    let (name, after) = text.split_once('=')?;
    let name = name.trim();
    if !is_variable_name(name) {
        return None;
    }
    let (value, after) = value(after.trim_start_matches([' ', '\t']))?;
    (!value.contains('\0')).then(|| ((name.to_owned(), value), after))
}

/// A value without its quotes, and what follows it. Quoted values may have several lines. Single quotes
/// keep every character literal. In double quotes `\n` is a line break, and a backslash makes any other
/// character literal. An unquoted value ends before a comment.
fn value(text: &str) -> Option<(String, &str)> {
    let (value, after) = if let Some(quoted) = text.strip_prefix('\'') {
        let (value, after) = quoted.split_once('\'')?;
        (value.to_owned(), after)
    } else if let Some(quoted) = text.strip_prefix('"') {
        double_quoted(quoted)?
    } else {
        let line = text.find('\n').map_or(text, |end| &text[..end]);
        let end = line.find(" #").unwrap_or(line.len());
        return Some((line[..end].trim().to_owned(), &text[line.len()..]));
    };
    let rest = after.lines().next().unwrap_or_default().trim();
    (rest.is_empty() || rest.starts_with('#')).then_some((value.replace("\r\n", "\n"), after))
}

/// A value after its opening quote, and what follows the closing one.
fn double_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
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
    fn env_file_with_byte_order_mark_and_values_of_several_lines_is_read() {
        let text =
            "\u{feff}A=1\r\nKEY=\"-----BEGIN\r\nb # c\n-----END\"\nB='x\n\n#y' # note\n  C = 3\n";
        let expected =
            [("A", "1"), ("KEY", "-----BEGIN\nb # c\n-----END"), ("B", "x\n\n#y"), ("C", "3")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parse(text), Ok(expected.to_vec()));
        // Lines of values count.
        assert_eq!(parse("A='x\ny'\nbad\n"), Err(3));
        assert_eq!(parse("OK=1\nA=\"x\ny\n"), Err(2));
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
