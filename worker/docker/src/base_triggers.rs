//! Check of the triggers (`ONBUILD`) of base images, for tasks whose author may not use the network of
//! the engine's host: a builder runs them, and fetches what they name from there.

use std::collections::BTreeMap;
use std::path::Path;

use bollard::models::ImageInspect;
use rollout_environment::dockerfile::{
    BaseImage, BuildFetchKind, Dockerfile, build_fetches, is_preprocessed,
};
use rollout_environment::image_access::ImageAccess;
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::spec::environment::ProviderSpec;

use super::base_images::{self, ResolvedBase};
use super::base_platform;
use super::build::BuildSpec;

/// A base image whose triggers are checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedBase {
    /// The image as the Dockerfile names it.
    pub(super) image: String,
    /// The image by digest or id.
    pub(super) reference: String,
    /// Platform to pull; an image that only the engine has is not pulled.
    pub(super) platform: Option<String>,
}

/// The rules for the builds of an environment.
pub(super) fn access(settings: &ProviderSpec) -> ImageAccess {
    match settings {
        ProviderSpec::Docker(settings) => ImageAccess::of_docker(settings),
        _ => ImageAccess::Everything,
    }
}

/// The images that the stages of a build start from. A Dockerfile that cannot be read has none: its
/// build fails. Blocks.
///
/// # Errors
/// An image cannot be told before the build, or no registry resolves it.
pub(super) fn bases(build: &BuildSpec) -> Result<Vec<CheckedBase>, Failure> {
    let Some(file) = base_images::dockerfile(build) else { return Ok(Vec::new()) };
    let platform = base_platform::arguments(build);
    if let Some(unknown) = file.unknown_image(&platform, &build.args) {
        return Err(untold(&unknown));
    }
    let bases = file.images_of_platform(&platform, &build.args).into_iter();
    let bases = bases.filter(BaseImage::starts_stage);
    bases.map(|base| checked(base, build)).collect()
}

fn checked(base: BaseImage, build: &BuildSpec) -> Result<CheckedBase, Failure> {
    let image = base.image;
    if build.is_local {
        return Ok(CheckedBase { reference: image.clone(), image, platform: None });
    }
    let platform = base.platform.or_else(|| build.platform.clone());
    let by_digest = |digest: &str| format!("{}@{digest}", base_images::repository(&image));
    if let Some((_, digest)) = image.split_once('@') {
        return Ok(CheckedBase { reference: by_digest(digest), image, platform });
    }
    let resolved = build.base_images.iter().find(|(known, _)| known.image == image);
    match resolved.and_then(|(_, resolved)| resolved.as_ref()) {
        Some(ResolvedBase::Digest(digest)) => {
            Ok(CheckedBase { reference: by_digest(digest), image, platform })
        }
        Some(ResolvedBase::Local(id)) => {
            Ok(CheckedBase { reference: id.clone(), image, platform: None })
        }
        None => {
            let message =
                format!("cannot check the base image `{image}`: its registry does not answer");
            Err(Failure::new(FailureKind::Unreachable, message))
        }
    }
}

/// Refuses a Dockerfile that is sent if it fetches something else than images, may do so, or has a base
/// image that was not checked. The registries of its images were checked before.
///
/// # Errors
/// It does.
pub(super) fn check_sent(build: &BuildSpec, text: &str) -> Result<(), Failure> {
    if !build.is_guarded() {
        return Ok(());
    }
    if is_preprocessed(Path::new(&build.dockerfile)) {
        let message = format!(
            "the Dockerfile `{}` of {}, which some builders preprocess: the server of this run does not \
             allow it",
            build.dockerfile, build.tag
        );
        return Err(Failure::new(FailureKind::Refused, message));
    }
    let found = build_fetches(text, &build.args).into_iter();
    for fetch in found.filter(|fetch| fetch.kind != BuildFetchKind::Image) {
        // Only images need the addresses of a name.
        if let Some(refused) = build.access.build_refusal(&fetch, |_name| Ok(Vec::new())) {
            let message = format!(
                "line {} of the Dockerfile of {}: {refused}: the server of this run does not allow it",
                fetch.line, build.tag
            );
            return Err(Failure::new(FailureKind::Refused, message));
        }
    }
    if build.is_local {
        return Ok(());
    }
    let platform = base_platform::arguments(build);
    let file = Dockerfile::read(text);
    if let Some(unknown) = file.unknown_image(&platform, &build.args) {
        return Err(untold(&unknown));
    }
    let is_local = |base: &BaseImage| {
        build.base_images.iter().any(|(own, known)| {
            own.image == base.image && matches!(known, Some(ResolvedBase::Local(_)))
        })
    };
    let bases = file.images_of_platform(&platform, &build.args).into_iter();
    let bases = bases.filter(BaseImage::starts_stage);
    let mut open = bases.filter(|base| !base.has_digest() && !is_local(base));
    open.next().map_or(Ok(()), |base| Err(untold(&base.image)))
}

fn untold(image: &str) -> Failure {
    let message = format!(
        "the base image `{image}` cannot be told before the build, which the server of this run \
         requires"
    );
    Failure::new(FailureKind::Refused, message)
}

/// The triggers of an image.
pub(super) fn of(found: &ImageInspect) -> impl Iterator<Item = &String> {
    found.config.iter().filter_map(|config| config.on_build.as_ref()).flatten()
}

/// Refuses an image whose triggers fetch something.
///
/// # Errors
/// One of them does, or may do.
pub(super) fn check(image: &str, found: &ImageInspect) -> Result<(), Failure> {
    let Some(trigger) = of(found).find(|trigger| may_fetch(trigger)) else {
        return Ok(());
    };
    let message = format!(
        "the base image `{image}` has the trigger `ONBUILD {trigger}`, with which the engine may fetch \
         something: the server of this run does not allow that"
    );
    Err(Failure::new(FailureKind::Refused, message))
}

fn may_fetch(trigger: &str) -> bool {
    let file = format!("FROM scratch\nONBUILD {trigger}\n");
    trigger.trim().contains(['\n', '\r']) || !build_fetches(&file, &BTreeMap::new()).is_empty()
}

#[cfg(test)]
mod tests {
    use bollard::models::ImageConfig;
    use rollout_protocol::digest::Digest;
    use rollout_protocol::spec::environment::DockerSettings;

    use super::*;

    fn build(dir: &Path, text: &str) -> BuildSpec {
        std::fs::write(dir.join("Dockerfile"), text).expect("written");
        let spec = BuildSpec::plain(dir.to_owned(), Digest::sha256(b""), None);
        BuildSpec { access: ImageAccess::default(), ..spec }
    }

    #[test]
    fn trigger_that_fetches_is_refused() {
        let image = |triggers: &[&str]| {
            let on_build = Some(triggers.iter().map(|&trigger| trigger.to_owned()).collect());
            let config = Some(ImageConfig { on_build, ..ImageConfig::default() });
            ImageInspect { config, ..ImageInspect::default() }
        };
        for trigger in [
            "ADD http://169.254.169.254/latest /x",
            "add [\"http://h/x\", \"/x\"]",
            "COPY --from=127.0.0.1:5000/x /a /b",
            "RUN --mount=type=bind,from=h/x,target=/x true",
            "RUN <<E\nx\nE\nADD http://h/x /x",
            "ONBUILD ADD http://h/x /x",
            "ADD http:${X+y}//h/x /x",
            "ADD http://h/x\\ /x",
            "COPY --chown=à--from=h/x /a /b",
        ] {
            let refused = check("a", &image(&["RUN true", trigger]));
            assert_eq!(refused.expect_err(trigger).kind, FailureKind::Refused, "{trigger}");
        }
        let plain = ["RUN npm install", "COPY package.json /app/", "ADD . /app", "WORKDIR /app"];
        assert_eq!(of(&image(&plain)).count(), plain.len());
        for image in [image(&plain), image(&[]), ImageInspect::default()] {
            assert!(check("a", &image).is_ok(), "{image:?}");
        }
    }

    #[test]
    fn bases_are_checked_by_digest_or_id() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = "FROM --platform=$BUILDPLATFORM a/b:1 AS own\nFROM own\nFROM docker.io/c:2@sha256:22\nFROM here\n\
                    COPY --from=d /x /y\nFROM e-$TARGETOS\n";
        let mut build = build(dir.path(), text);
        let missing = bases(&build).expect_err("not resolved");
        assert_eq!(missing.kind, FailureKind::Unreachable);
        let images = base_platform::images(&build).expect("usual names");
        build.base_images = images
            .into_iter()
            .map(|base| {
                let known = match base.image.as_str() {
                    "here" => ResolvedBase::Local("sha256:33".to_owned()),
                    _ => ResolvedBase::Digest("sha256:11".to_owned()),
                };
                (base, Some(known))
            })
            .collect();
        let found = bases(&build).expect("resolved");
        assert!(found[0].platform.as_deref().is_some_and(|own| own.starts_with("linux/")));
        assert_eq!(found[1].platform, None);
        let found = found.iter().map(|base| base.reference.as_str()).collect::<Vec<_>>();
        assert_eq!(found, ["a/b@sha256:11", "c@sha256:22", "sha256:33", "e-linux@sha256:11"]);
        assert!(check_sent(&build, text).is_err());
        let sent = text.replace("a/b:1", "a/b:1@sha256:11");
        assert!(check_sent(&build, &sent).is_err());
        let sent = sent.replace("e-$TARGETOS", "e-linux@sha256:11");
        assert!(check_sent(&build, &sent).is_ok());
    }

    #[test]
    fn text_that_is_sent_fetches_images_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let guarded = build(dir.path(), "");
        let local = BuildSpec { is_local: true, ..guarded.clone() };
        let unguarded = BuildSpec { access: ImageAccess::Everything, ..guarded.clone() };
        let base = "FROM a@sha256:00\n";
        for line in [
            "USER root\nADD http://169.254.169.254/latest/user-data /x",
            "USER root\nCOPY --from=\"10.0.0.5/x\" /a /b",
            "ADD $X /x",
            "RUN <<E+1\nE+1",
        ] {
            let text = format!("{base}{line}\n");
            for build in [&guarded, &local] {
                let failure = check_sent(build, &text).expect_err(line);
                assert_eq!(failure.kind, FailureKind::Refused, "{line}");
            }
            assert!(check_sent(&unguarded, &text).is_ok(), "{line}");
        }
        let text = format!("# syntax=a/b\n{base}");
        assert!(check_sent(&guarded, &text).is_err());
        let preprocessed = BuildSpec { dockerfile: "D.in".to_owned(), ..guarded.clone() };
        assert!(check_sent(&preprocessed, base).is_err() && check_sent(&guarded, base).is_ok());
        let plain = format!("{base}USER app\nCOPY a /b\nRUN [\"sh\", \"-c\", \"cat <<E\"]\n");
        assert!(check_sent(&guarded, &plain).is_ok() && check_sent(&local, &plain).is_ok());
    }

    #[test]
    fn base_that_cannot_be_told_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in [
            "ARG B\nFROM $B\n",
            "ARG B\nFROM a/b$B@sha256:00\n",
            "ARG B\nFROM --platform=$B a/b@sha256:00\n",
            "FROM --platform=linux/${A:-arm64} a/b@sha256:00\n",
        ] {
            let args = [("A".to_owned(), "amd64".to_owned())].into();
            let build = BuildSpec { args, ..build(dir.path(), text) };
            let failure = bases(&build).expect_err(text);
            assert_eq!(failure.kind, FailureKind::Refused, "{text}");
        }
        let settings = |guards_builds| {
            ProviderSpec::Docker(DockerSettings { guards_builds, ..DockerSettings::default() })
        };
        assert_eq!(access(&settings(true)), ImageAccess::default());
        assert_eq!(access(&settings(false)), ImageAccess::Everything);
    }
}
