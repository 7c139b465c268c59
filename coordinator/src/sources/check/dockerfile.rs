//! Dockerfile checks: base images and copied files.

use std::collections::BTreeMap;

use rollout_environment::dockerfile::{Dockerfile, DockerfileInstruction};

/// Frontend with the same rules as the engine's own.
const STANDARD_FRONTENDS: &str = "docker/dockerfile";

/// The base images of a Dockerfile, each with its line, without its own stages and without images
/// whose name is only known during the build.
pub(super) fn base_images(file: &Dockerfile) -> Vec<(usize, String)> {
    let images = file.base_images(&BTreeMap::new());
    images.into_iter().map(|base| (base.line, base.image)).collect()
}

/// Build errors, each with its line. Other frontends have rules of their own.
pub(super) fn problems(file: &Dockerfile) -> Vec<(usize, String)> {
    let usual = |image: &str| {
        image.trim_start_matches("docker.io/").split([':', '@']).next() == Some(STANDARD_FRONTENDS)
    };
    if file.syntax.as_ref().is_some_and(|(_, image)| !usual(image)) {
        return Vec::new();
    }
    file.problems.iter().map(|problem| (problem.line, problem.message.clone())).collect()
}

/// The sources that an instruction copies from the build context.
pub(super) fn copy_sources(instruction: &DockerfileInstruction) -> Vec<String> {
    let from_other_stage = instruction.flags.iter().any(|flag| flag.starts_with("--from="));
    if !is_copy(instruction) || from_other_stage {
        return Vec::new();
    }
    let mut words = instruction.words();
    words.pop();
    words.retain(|word| !word.starts_with("<<"));
    words
}

/// Whether an instruction copies files.
pub(super) fn is_copy(instruction: &DockerfileInstruction) -> bool {
    matches!(instruction.name.as_str(), "COPY" | "ADD")
}

/// Whether an image reference can change its meaning: it has neither a digest nor a tag other than
/// `latest`.
pub(super) fn is_unpinned(image: &str) -> bool {
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockerfile_copy_sources_are_files_of_context_only() {
        let text = "FROM a AS b\nCOPY --chmod=755 [\"x y\", \"z\", \"/t\"]\nADD <<E one /t\nhi\nE\n\
                    COPY --from=b p /t\nRUN q r\n";
        let found = Dockerfile::read(text);
        let found: Vec<_> = found.instructions.iter().flat_map(copy_sources).collect();
        assert_eq!(found, ["x y", "z", "one"]);
    }

    #[test]
    fn dockerfile_with_unknown_frontend_has_no_problems() {
        let problems = |text: &str| problems(&Dockerfile::read(text)).len();
        assert_eq!(problems("FROM a\nNONSENSE b\n"), 1);
        assert_eq!(problems("# syntax=docker/dockerfile:1.7\nFROM a\nNONSENSE b\n"), 1);
        assert_eq!(problems("# syntax=else/where:1\nFROM a\nNONSENSE b\n"), 0);
    }

    #[test]
    fn image_without_tag_or_digest_is_unpinned() {
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
