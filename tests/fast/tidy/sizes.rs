//! Rules on sizes of files and functions.

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Most lines of a file.
const FILE_LINES: usize = 600;

/// Most lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 70;

/// Longer functions: path, name, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

fn long_files(source: &SourceFile) -> Vec<Violation> {
    let lines = source.text.lines().count();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![Violation::new(&source.path, 0, format!("{lines} lines, at most {FILE_LINES}"))]
}

fn long_functions(source: &SourceFile) -> Vec<Violation> {
    functions(&source.masked.code)
        .into_iter()
        .filter(|function| function.lines > FUNCTION_LINES)
        .filter(|f| !EXCEPTIONS.iter().any(|(p, n, _)| *p == source.path && *n == f.name))
        .map(|function| {
            let FunctionSpan { name, line, lines } = function;
            let what = format!("function `{name}` has {lines} lines, at most {FUNCTION_LINES}");
            Violation::new(&source.path, line, what)
        })
        .collect()
}

struct FunctionSpan {
    name: String,
    line: usize,
    lines: usize,
}

/// The functions with a body in masked code.
fn functions(code: &str) -> Vec<FunctionSpan> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| is_word(*c)).collect();
        if name.is_empty() {
            continue;
        }
        let Some(length) = body_end(&code[at..]) else { continue };
        let line = code[..at].matches('\n').count() + 1;
        let lines = code[at..at + length].matches('\n').count() + 1;
        found.push(FunctionSpan { name, line, lines });
    }
    found
}

/// The end of the function that starts at `code`; `None` for a declaration without a body.
fn body_end(code: &str) -> Option<usize> {
    let mut braces = 0;
    let mut parentheses = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 && parentheses == 0 {
                    return Some(at + 1);
                }
            }
            ';' if braces == 0 && parentheses == 0 => return None,
            _ => {}
        }
    }
    None
}

#[test]
fn source_files_are_short() {
    assert_none(&files::rust().flat_map(long_files).collect::<Vec<_>>());
}

#[test]
fn functions_are_short() {
    assert_none(&files::rust().flat_map(long_functions).collect::<Vec<_>>());
    for (path, name, _) in EXCEPTIONS {
        let source = files::rust().find(|source| source.path == *path);
        let functions = source.map(|source| functions(&source.masked.code)).unwrap_or_default();
        let needed = functions.iter().any(|f| f.name == *name && f.lines > FUNCTION_LINES);
        assert!(needed, "the exception for {path} {name} is not needed");
    }
}

#[test]
fn size_violations_are_found() {
    let lines = |count| "    x();\n".repeat(count);
    let file = |text: String| SourceFile::new("worker/src/x.rs", &text);
    assert_eq!(long_files(&file(lines(601))).len(), 1);
    assert_eq!(long_files(&file(lines(600))).len(), 0);
    let function =
        |count| file(format!("trait T {{ fn a(x: [u8; 2]); }}\nfn b() {{\n{}}}\n", lines(count)));
    assert_eq!(long_functions(&function(68)), []);
    let found = long_functions(&function(69));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].line, 2);
}
