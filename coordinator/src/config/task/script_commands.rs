//! The commands of a script: its text without comments and data.

use std::path::Path;

/// Programs that run the text of a here-document.
const INTERPRETERS: [&str; 6] = ["bash", "sh", "python", "perl", "node", "ruby"];

/// Commands whose words are printed, up to a redirection.
const PRINTING: [&str; 3] = ["echo", "printf", ":"];

/// Words before the program of a command.
const KEYWORDS: [&str; 11] =
    ["do", "then", "else", "elif", "if", "while", "until", "!", "time", "command", "builtin"];

/// Endings of the names of scripts in languages other than shell and Python.
const OTHER_ENDINGS: [&str; 8] = ["js", "mjs", "ts", "rb", "pl", "php", "lua", "R"];

/// A language of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptLanguage {
    Shell,
    Python,
    Other,
}

/// The commands of a file; `None` if it is data and no script. The first line or the ending of the
/// name says which.
pub(super) fn commands(file: &Path, text: &str) -> Option<String> {
    Some(match language(file, text)? {
        ScriptLanguage::Shell => shell_commands(text),
        ScriptLanguage::Python => python_commands(text),
        ScriptLanguage::Other => other_commands(text),
    })
}

fn language(file: &Path, text: &str) -> Option<ScriptLanguage> {
    let first = text.lines().next().and_then(|line| line.strip_prefix("#!"));
    if let Some(program) = first {
        let mut words = program.split_whitespace().filter_map(|word| word.rsplit('/').next());
        let name = words.find(|word| *word != "env" && !word.starts_with('-'));
        return Some(match name {
            Some(name) if name.starts_with("python") => ScriptLanguage::Python,
            Some(name) if name.ends_with("sh") => ScriptLanguage::Shell,
            _ => ScriptLanguage::Other,
        });
    }
    match file.extension()?.to_str()? {
        "sh" | "bash" => Some(ScriptLanguage::Shell),
        "py" => Some(ScriptLanguage::Python),
        ending => OTHER_ENDINGS.contains(&ending).then_some(ScriptLanguage::Other),
    }
}

/// The text without lines that are comments.
fn other_commands(text: &str) -> String {
    let is_comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with('#') || line.starts_with("//") || line.starts_with("--")
    };
    text.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n")
}

/// The text without comments and without strings that are statements, such as descriptions of
/// functions.
fn python_commands(text: &str) -> String {
    let (mut kept, mut open): (String, Option<(&str, bool)>) = (String::new(), None);
    for line in text.lines() {
        let (mut rest, mut is_statement) = (line, line.trim_start());
        loop {
            if let Some((quotes, is_data)) = open {
                let (inside, after) = match rest.split_once(quotes) {
                    Some((inside, after)) => (inside, Some(after)),
                    None => (rest, None),
                };
                if !is_data {
                    kept.push_str(inside);
                }
                let Some(after) = after else { break };
                (open, rest, is_statement) = (None, after, "");
            }
            let end = code_end(rest);
            kept.push_str(&rest[..end]);
            let Some(quotes) = ["\"\"\"", "'''"].into_iter().find(|q| rest[end..].starts_with(q))
            else {
                break;
            };
            let begins = is_statement.trim_start_matches(['r', 'u', 'R', 'U']).starts_with(quotes);
            open = Some((quotes, begins));
            rest = &rest[end + quotes.len()..];
        }
        kept.push('\n');
    }
    kept
}

/// The end of a line of Python before a comment or a string of several lines.
fn code_end(line: &str) -> usize {
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            None if c == '#' => return at,
            None if ["\"\"\"", "'''"].iter().any(|quotes| line[at..].starts_with(quotes)) => {
                return at;
            }
            None if c == '"' || c == '\'' => quote = Some(c),
            _ => {}
        }
    }
    line.len()
}

/// The text without comments, here-documents that no interpreter runs, and printed words.
fn shell_commands(text: &str) -> String {
    let mut kept = String::new();
    let mut quote: Option<char> = None;
    let mut is_printing = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let read = ShellLine::read(line, &mut quote);
        kept.push_str(&without_printed(&read, &mut is_printing));
        is_printing &= quote.is_some() || read.is_continued;
        kept.push('\n');
        let runs = !read.documents.is_empty()
            && read.code.split(|c: char| c.is_whitespace()).any(is_interpreter);
        for end in &read.documents {
            for line in lines.by_ref().take_while(|line| line.trim_start_matches('\t') != end) {
                if runs && !line.trim_start().starts_with('#') {
                    kept.push_str(line);
                    kept.push('\n');
                }
            }
        }
    }
    kept
}

fn is_interpreter(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    INTERPRETERS.contains(&name)
}

/// A line of a shell script.
#[derive(Debug, Default)]
struct ShellLine {
    /// The line without its comment.
    code: String,
    /// Positions in `code` at which a command ends, outside of quotes.
    ends: Vec<usize>,
    /// Positions in `code` of redirections, outside of quotes.
    redirections: Vec<usize>,
    /// The words that end the here-documents that begin after the line.
    documents: Vec<String>,
    /// Whether its last command goes on in the next line.
    is_continued: bool,
}

impl ShellLine {
    /// Reads a line; `quote` is the quotation in which it begins, and then that in which it ends: its
    /// character, or `$` for `$'…'`.
    fn read(line: &str, quote: &mut Option<char>) -> Self {
        let mut read = Self::default();
        let mut chars = line.char_indices();
        let mut before = ' ';
        while let Some((at, c)) = chars.next() {
            match *quote {
                Some('$') if c == '\'' => *quote = None,
                Some(open) if c == open && open != '$' => *quote = None,
                Some('"' | '$') | None if c == '\\' => {
                    read.code.push(c);
                    let escaped = chars.next().map(|(_, escaped)| escaped);
                    read.is_continued = escaped.is_none();
                    read.code.extend(escaped);
                    before = c;
                    continue;
                }
                Some(_) => {}
                None => match c {
                    '#' if before.is_whitespace() || ";&|(".contains(before) => break,
                    '\'' if before == '$' => *quote = Some('$'),
                    '"' | '\'' => *quote = Some(c),
                    ';' | '&' | '|' if before != '>' => read.ends.push(read.code.len()),
                    '>' => read.redirections.push(read.code.len()),
                    '<' if before != '<' => read.documents.extend(document_end(&line[at..])),
                    _ => {}
                },
            }
            read.code.push(c);
            before = c;
        }
        read
    }
}

/// The word that ends a here-document, if a text begins with the operator of one.
fn document_end(text: &str) -> Option<String> {
    let rest = text.strip_prefix("<<")?;
    let rest = rest.strip_prefix('-').unwrap_or(rest).trim_start();
    if rest.starts_with('<') {
        return None;
    }
    let is_end = |c: char| c.is_whitespace() || ";&|<>()".contains(c);
    let word: String = rest.split(is_end).next()?.replace(['"', '\'', '\\'], "");
    // `1 << 2` is arithmetic.
    word.starts_with(|c: char| c.is_alphabetic() || c == '_').then_some(word)
}

/// The code of a line without the words that its commands print. `is_printing`: whether the line begins,
/// and then whether it ends, in a command that prints.
fn without_printed(line: &ShellLine, is_printing: &mut bool) -> String {
    let mut is_rest = *is_printing;
    let mut kept = String::new();
    let mut start = 0;
    let mut redirections = line.redirections.iter().copied().peekable();
    for end in line.ends.iter().copied().chain([line.code.len()]) {
        let part = &line.code[start..end];
        // Both lists are in the order of the line.
        while redirections.next_if(|at| *at < start).is_some() {}
        let first = part.trim_start_matches([';', '&', '|', ' ', '\t', '{', '(']);
        *is_printing = is_rest || PRINTING.contains(&program(first));
        is_rest = false;
        if *is_printing {
            // The words may be the output of other commands.
            part.split("$(").skip(1).for_each(|inner| kept.push_str(inner));
            let redirection = redirections.peek().filter(|at| **at < end);
            kept.extend(redirection.map(|at| &line.code[*at..end]));
            *is_printing = !opens_command(part);
        } else {
            kept.push_str(part);
        }
        kept.push(' ');
        start = end;
    }
    kept
}

/// The program of a command, after keywords and the head of a function or of a case.
fn program(command: &str) -> &str {
    let is_head = |word: &str| word.ends_with("()") || (word.ends_with(')') && !word.contains('('));
    let words = command.split_whitespace().map(|word| word.trim_start_matches(['(', '{']));
    let mut programs =
        words.filter(|word| !word.is_empty() && !KEYWORDS.contains(word) && !is_head(word));
    programs.next().unwrap_or_default()
}

/// Whether words that are printed end inside of a command whose output they are.
fn opens_command(words: &str) -> bool {
    let is_open = words.rsplit_once("$(").is_some_and(|(_, command)| !command.contains(')'));
    is_open || words.matches('`').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> String {
        commands(Path::new(name), text).expect("a script")
    }

    #[test]
    fn file_is_script_by_its_name_or_first_line() {
        for (name, text, expected) in [
            ("test.sh", "true", Some(ScriptLanguage::Shell)),
            ("run", "#!/bin/bash\ntrue", Some(ScriptLanguage::Shell)),
            ("run", "#!/usr/bin/env -S python3 -u\n", Some(ScriptLanguage::Python)),
            ("check.py", "x = 1", Some(ScriptLanguage::Python)),
            ("check.js", "x()", Some(ScriptLanguage::Other)),
            ("notes.md", "x", None),
            ("expected.json", "{}", None),
            ("run", "x", None),
        ] {
            assert_eq!(language(Path::new(name), text), expected, "{name} {text}");
        }
    }

    #[test]
    fn shell_comments_and_data_are_no_commands() {
        for text in [
            "# W",
            "true # W",
            "true;# W",
            "cat > notes.txt <<'EOF'\nW\nEOF\ntrue",
            "cat <<-EOF > notes\n\tW\n\tEOF",
            "cat <<EOF\nW\nEOF\nx=$((1 << 2))",
            "echo W",
            "if true; then echo \"W and $x\"; fi",
            "printf '%s\\n' W && true",
            "for f in a; do echo \"see W\"; done",
            "while true; do printf W; done",
            "if ! echo W; then true; fi",
            "time echo W",
            "[[ -e x ]] && { echo W; }",
            "f() { echo W; }",
            "case x in\na) echo W;;\nesac",
            "echo \"The verifier\nwrites W\"",
            "echo 'a\nb W' > x; true",
            "echo \"a\nW\n\"",
            "echo a \\\n  W",
        ] {
            assert!(!of("a.sh", text).contains('W'), "{text}: {}", of("a.sh", text));
        }
    }

    #[test]
    fn shell_commands_are_kept() {
        for text in [
            "cat W",
            "x=W",
            "echo 1 > W",
            "echo 1 >> \"W\"",
            "echo '# 1' > W",
            "echo 1 | tee W",
            "echo $(cat W)",
            "test -e x && cp W .",
            "echo a#b; cat W",
            "python3 - <<'EOF'\nopen('W')\nEOF",
            "cat <<< x; cat W",
            "cat <<EOF\nx\nEOF\ncat W",
            "x=$((1 << 2))\ncat W",
            "echo $(cat W) > x",
            "python3 -c \"\n# x\nopen('W')\n\"",
            "cat \\# W",
            "echo \"a\nb\" > W",
            "echo \"a\nb\"; cat W",
            "echo \"a\n; b\"\ncat W",
            "echo \"$(\ncat W)\"",
            "echo \"`\ncat W\n`\"",
            "echo a \\\n  > W",
            "for f in a; do cat W; done",
            "x=\"echo\nW\"",
            "echo $'don\\'t'\ncat W",
        ] {
            assert!(of("a.sh", text).contains('W'), "{text}: {}", of("a.sh", text));
        }
    }

    #[test]
    fn script_of_many_documents_and_redirections_is_read_in_time() {
        let started = std::time::Instant::now();
        let documents = of("a.sh", &"<<a ".repeat(250_000));
        assert!(documents.starts_with("<<a <<a"));
        let redirections = of("a.sh", &format!("{}cat W", "echo > ;".repeat(150_000)));
        assert!(redirections.ends_with("cat W \n") && redirections.contains('>'));
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }

    #[test]
    fn python_comments_and_descriptions_are_no_commands() {
        for text in [
            "# W",
            "x = 1  # W",
            "\"\"\"W\"\"\"",
            "def f():\n    '''Reads\n    W.\n    '''\n    return 1",
            "x = '#'  # W",
        ] {
            assert!(!of("a.py", text).contains('W'), "{text}: {}", of("a.py", text));
        }
        for text in [
            "open('W')",
            "x = '#W'",
            "x = \"\"\"\nW\n\"\"\"",
            "'''x'''; open('W')",
            "x = \"it's\"; open('W')  # x",
        ] {
            assert!(of("a.py", text).contains('W'), "{text}: {}", of("a.py", text));
        }
        assert!(!of("a.js", "// W\nx()").contains('W'));
        assert!(of("a.js", "// x\nread('W')").contains('W'));
    }
}
