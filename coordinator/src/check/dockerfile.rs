//! What a Dockerfile says of its images and of what it copies.

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Line that it begins on, from 1.
    pub(super) line: usize,
    /// Its word, in capitals.
    pub(super) word: String,
    /// What follows, flags left out.
    pub(super) arguments: Vec<String>,
    /// Whether it copies from another stage or image.
    pub(super) from_elsewhere: bool,
}

/// The instructions of a Dockerfile. What cannot be made sense of is left out.
pub(super) fn instructions(text: &str) -> Vec<Instruction> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (begun, mut words) = open.take().unwrap_or((index + 1, String::new()));
        let continued = line.strip_suffix('\\');
        words.push_str(continued.unwrap_or(line));
        words.push(' ');
        if continued.is_some() {
            open = Some((begun, words));
        } else {
            found.extend(instruction(begun, &words));
        }
    }
    found.extend(open.and_then(|(line, words)| instruction(line, &words)));
    found
}

fn instruction(line: usize, words: &str) -> Option<Instruction> {
    let (word, rest) = words.trim().split_once(char::is_whitespace)?;
    let clean = |word: &str| word.trim_matches(|c| "[],\"'".contains(c)).to_owned();
    let (flags, arguments): (Vec<String>, Vec<String>) = rest
        .split_whitespace()
        .map(clean)
        .filter(|word| !word.is_empty())
        .partition(|word| word.starts_with("--"));
    let from_elsewhere = flags.iter().any(|flag| flag.starts_with("--from="));
    Some(Instruction { line, word: word.to_ascii_uppercase(), arguments, from_elsewhere })
}

/// The images that a Dockerfile begins from, each with its line; neither earlier stages nor
/// variables.
pub(super) fn bases(instructions: &[Instruction]) -> Vec<(usize, String)> {
    let mut stages: Vec<String> = vec!["scratch".to_owned()];
    let mut bases = Vec::new();
    for from in instructions.iter().filter(|instruction| instruction.word == "FROM") {
        let Some(image) = from.arguments.first() else { continue };
        if !stages.contains(&image.to_ascii_lowercase()) && !image.contains('$') {
            bases.push((from.line, image.clone()));
        }
        if let [_, word, name] = from.arguments.as_slice()
            && word.eq_ignore_ascii_case("as")
        {
            stages.push(name.to_ascii_lowercase());
        }
    }
    bases
}

/// Whether an image reference can mean another image tomorrow: it has neither a digest nor a tag
/// other than `latest`.
pub(super) fn is_unpinned(image: &str) -> bool {
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_images_that_are_no_stages() {
        let text = "# FROM x\nfrom --platform=linux/amd64 debian AS Base\nRUN a \\\n  # b\n  && c\n\
                    FROM base\nFROM scratch\nFROM $IMAGE\nFROM host:5000/x:1\nCOPY --from=base [\"a\", \"b\"]\n";
        let found = instructions(text);
        assert_eq!(bases(&found), [(2, "debian".to_owned()), (9, "host:5000/x:1".to_owned())]);
        let copy = found.last().expect("some");
        assert!(copy.from_elsewhere && copy.arguments == ["a", "b"] && copy.line == 10, "{copy:?}");
        assert_eq!(found[1].arguments, ["a", "&&", "c"]);
    }

    #[test]
    fn tags_and_digests_pin() {
        for (image, unpinned) in [
            ("debian", true),
            ("debian:latest", true),
            ("debian:12", false),
            ("host:5000/debian", true),
            ("host:5000/debian:12", false),
            ("debian@sha256:00", false),
        ] {
            assert_eq!(is_unpinned(image), unpinned, "{image}");
        }
    }
}
