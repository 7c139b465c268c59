//! Instructions that a host adds to the stages of a Dockerfile.

use super::parse::Dockerfile;

/// The Dockerfile with an instruction at the beginning of every stage.
pub fn in_every_stage(text: &str, instruction: &str) -> String {
    let (mut changed, mut copied) = (String::new(), 0);
    let file = Dockerfile::read(text);
    for from in file.instructions.iter().filter(|one| one.name == "FROM") {
        changed.push_str(&text[copied..from.span.end]);
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
            ("# nothing\n", "# nothing\n"),
        ] {
            assert_eq!(in_every_stage(text, "LABEL x=y"), expected, "{text}");
        }
    }
}
