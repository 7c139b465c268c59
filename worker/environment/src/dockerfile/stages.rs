//! Instructions that a host adds to the stages of a Dockerfile.

use super::parse::{Dockerfile, DockerfileInstruction};

/// The Dockerfile with an instruction at the beginning of every stage.
pub fn in_every_stage(text: &str, instruction: &str) -> String {
    let (mut changed, mut copied) = (String::new(), 0);
    let file = Dockerfile::read(text);
    for from in file.instructions.iter().filter(|one| one.name == "FROM") {
        if from.span.end == text.len() && text[from.span.clone()].contains(file.escape) {
            // An escape character at the end of the file would join the instruction to this one.
            changed.push_str(&text[copied..from.span.start]);
            changed.push_str(&in_one_line(from));
        } else {
            changed.push_str(&text[copied..from.span.end]);
        }
        if !changed.ends_with('\n') {
            changed.push('\n');
        }
        changed.push_str(instruction);
        changed.push('\n');
        copied = from.span.end;
    }
    changed.push_str(&text[copied..]);
    changed
}

/// An instruction without continuation lines.
fn in_one_line(instruction: &DockerfileInstruction) -> String {
    let flags = instruction.flags.iter().map(String::as_str);
    let name = std::iter::once(instruction.name.as_str());
    let words: Vec<&str> = name.chain(flags).chain([instruction.rest.as_str()]).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_begins_with_the_instruction() {
        for (text, expected) in [
            ("FROM a", "FROM a\nLABEL x=y\n"),
            (
                "# escape=`\nARG V\nFROM a:$V `\n  AS one\nRUN b\nfrom one\n\nRUN c\n",
                "# escape=`\nARG V\nFROM a:$V `\n  AS one\nLABEL x=y\nRUN b\nfrom one\nLABEL x=y\n\nRUN c\n",
            ),
            (
                "FROM a\r\nRUN <<E\nFROM b\nE\nONBUILD RUN d\n",
                "FROM a\r\nLABEL x=y\nRUN <<E\nFROM b\nE\nONBUILD RUN d\n",
            ),
            ("FROM a \\", "FROM a\nLABEL x=y\n"),
            ("FROM a \\\n", "FROM a\nLABEL x=y\n"),
            (
                "FROM a\nRUN b\nfrom --platform=c \\\n# d\n a AS e \\\n\\\n\n# f\n",
                "FROM a\nLABEL x=y\nRUN b\nFROM --platform=c a AS e\nLABEL x=y\n",
            ),
            ("# escape=`\nFROM a `\r\n", "# escape=`\nFROM a\nLABEL x=y\n"),
            ("FROM a \\\n AS b\n# c\n", "FROM a \\\n AS b\nLABEL x=y\n# c\n"),
            ("# nothing\n", "# nothing\n"),
        ] {
            assert_eq!(in_every_stage(text, "LABEL x=y"), expected, "{text}");
        }
    }
}
