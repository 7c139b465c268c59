//! Rules for names in commits.

/// Whether a file system could take a name for `.git`, or a part of it between backslashes: in any
/// case, with the characters that HFS+ ignores, with the short names and streams of NTFS, or with
/// the trailing dots and blanks that Windows drops.
pub fn is_git(component: &[u8]) -> bool {
    let text = String::from_utf8_lossy(component);
    let visible: String = text.chars().filter(|c| !is_ignored(*c)).collect();
    visible.to_lowercase().split('\\').any(|part| {
        let name = part.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
        let short = name.strip_prefix("git~");
        name == ".git"
            || short
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Whether a path may be part of a commit made by Rollout: relative, plain, without any `.git`.
pub fn is_safe(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|component| {
        !matches!(component, b"" | b"." | b"..") && !component.contains(&0) && !is_git(component)
    })
}

/// Characters that HFS+ ignores when it compares names.
const fn is_ignored(c: char) -> bool {
    matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_dir_name_in_any_spelling_is_unsafe() {
        for name in [
            ".git",
            ".GIT",
            ".Git",
            ".git.",
            ".git ",
            ".git . .",
            "git~1",
            "GIT~1",
            "git~2",
            ".git::$INDEX_ALLOCATION",
            ".git:x",
            ".g\u{200c}it",
            "\u{feff}.git",
            "a\\.git\\b",
        ] {
            assert!(is_git(name.as_bytes()), "{name}");
            assert!(!is_safe(format!("a/{name}/b").as_bytes()), "{name}");
        }
        for name in [".gitignore", ".gitattributes", "git", "git~", "a.git", ".gitx", "…", "a\nb"]
        {
            assert!(!is_git(name.as_bytes()), "{name}");
            assert!(is_safe(format!("a/{name}").as_bytes()), "{name}");
        }
        for path in ["", "/a", "a//b", "a/../b", "./a", "a/", "a\0b"] {
            assert!(!is_safe(path.as_bytes()), "{path}");
        }
    }
}
