//! The grammar of Dockerfiles, as BuildKit reads them.
//!
//! * `parse`: directives, instructions, flags, here-documents.
//! * `rules`: rules of every builder.
//! * `images`: the images that it is built from.
//! * `fetches`: everything that a build fetches.
//! * `ca_bundle`: the file that a host adds to its commands.
//! * `stages`: instructions that a host adds to its stages.
//! * `forms`: what all builders read alike.
//! * `words`: quotes, escapes and variables.

mod ca_bundle;
mod fetches;
mod forms;
mod images;
mod parse;
mod rules;
mod stages;
pub mod words;

pub use self::ca_bundle::{CA_BUNDLE_SECRET, with_ca_bundle, without_ca_bundle};
pub use self::fetches::{
    BuildFetch, BuildFetchKind, CACHE_NAMESPACE_ARGUMENT, FRONTEND_ARGUMENT, build_fetches,
    is_preprocessed, lacks_heredocs,
};
pub use self::forms::UnclearForm;
pub use self::images::{BaseImage, with_images};
pub use self::parse::{Dockerfile, DockerfileInstruction, DockerfileProblem};
pub use self::stages::in_every_stage;

/// The arguments of an instruction that are written as a JSON list.
pub fn json_list(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

/// Whether arguments are no JSON list here but may be one for a builder, whose reader of JSON takes
/// half surrogates.
pub(super) fn may_be_json_list(text: &str) -> bool {
    text.starts_with('[') && text.contains('"') && json_list(text).is_none()
}

#[cfg(test)]
mod tests;
