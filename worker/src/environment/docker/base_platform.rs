//! The platform of a build for a user of a server, and the images whose names depend on it. A server checks the
//! names of a usual platform: it does not know the one of an engine.

use std::collections::{BTreeMap, BTreeSet};

use super::base_images;
use super::build::BuildSpec;
use crate::environment::dockerfile::{BaseImage, BuildFetchKind, Dockerfile, build_fetches};
use crate::environment::registry_lookups::RegistryLookups;
use crate::environment::{Failure, FailureKind};

/// The platforms of such builds, as builders write them in `TARGETPLATFORM`. They take any text for an
/// architecture, also the address of a registry.
const PLATFORMS: [&str; 13] = [
    "linux/386",
    "linux/amd64",
    "linux/amd64/v2",
    "linux/amd64/v3",
    "linux/arm/v5",
    "linux/arm/v6",
    "linux/arm/v7",
    "linux/arm64",
    "linux/loong64",
    "linux/mips64le",
    "linux/ppc64le",
    "linux/riscv64",
    "linux/s390x",
];

/// Other texts for some of them.
const OTHER_TEXTS: [(&str, &str); 5] = [
    ("linux/aarch64", "linux/arm64"),
    ("linux/amd64/v1", "linux/amd64"),
    ("linux/arm", "linux/arm/v7"),
    ("linux/arm64/v8", "linux/arm64"),
    ("linux/x86_64", "linux/amd64"),
];

/// A platform as builders write it.
fn normal(platform: &str) -> &str {
    let known = OTHER_TEXTS.iter().find(|(text, _)| *text == platform);
    known.map_or(platform, |(_, normal)| *normal)
}

/// The arguments that every build has, with the values of build arguments of the same name.
pub(super) fn arguments(build: &BuildSpec) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = format!("linux/{arch}");
    let target = build.platform.as_deref().map_or(own.as_str(), normal);
    let mut arguments = BTreeMap::new();
    for (kind, platform) in [("BUILD", own.as_str()), ("TARGET", target)] {
        let mut parts = platform.splitn(3, '/');
        arguments.insert(format!("{kind}PLATFORM"), platform.to_owned());
        for name in ["OS", "ARCH", "VARIANT"] {
            let part = parts.next().unwrap_or_default();
            arguments.insert(format!("{kind}{name}"), part.to_owned());
        }
    }
    for (name, value) in &mut arguments {
        if let Some(given) = build.args.get(name) {
            value.clone_from(given);
        }
    }
    arguments
}

/// The base images of a build. Those for a user of a server are also those whose name has arguments of platforms.
/// Blocks.
///
/// # Errors
/// The build is for a user of a server, and for an unknown platform, or with an image that may not be used.
pub(super) fn images(build: &BuildSpec) -> Result<Vec<BaseImage>, Failure> {
    if !build.is_guarded() {
        return Ok(base_images::images(build));
    }
    let unknown = build.platform.as_deref().filter(|text| !PLATFORMS.contains(&normal(text)));
    if let Some(platform) = unknown {
        let message = format!(
            "cannot build for the platform `{platform}`: the server of this run allows {}",
            PLATFORMS.join(", ")
        );
        return Err(Failure::new(FailureKind::Refused, message));
    }
    let Some(text) = base_images::text(build) else { return Ok(Vec::new()) };
    let images = Dockerfile::read(&text).images_of_platform(&arguments(build), &build.args);
    check(build, &text, &images)?;
    Ok(images)
}

/// Refuses an image that may not be used, of those that a usual platform does not have: the server checked the
/// others.
fn check(build: &BuildSpec, text: &str, images: &[BaseImage]) -> Result<(), Failure> {
    let fetches = build_fetches(text, &build.args).into_iter();
    let usual = fetches.filter(|fetch| fetch.kind == BuildFetchKind::Image);
    let usual: BTreeSet<String> = usual.map(|fetch| fetch.source).collect();
    let lookups = RegistryLookups::new(|| false);
    for base in images.iter().filter(|base| !usual.contains(&base.image)) {
        let look_up = |name: &str| lookups.addresses(name);
        let Some(refusal) = build.access.refusal(&base.image, look_up) else { continue };
        let kind = match refusal.is_unresolved() {
            true => FailureKind::Unreachable,
            false => FailureKind::Refused,
        };
        let message = format!(
            "line {} of the Dockerfile: {refusal}: the server of this run does not allow it on the \
             platform of the build",
            base.line
        );
        return Err(Failure::new(kind, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollout_protocol::digest::Digest;

    use super::*;
    use crate::environment::image_access::ImageAccess;

    fn found(text: &str, platform: &str, access: ImageAccess) -> Result<Vec<String>, Failure> {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("Dockerfile"), text).expect("written");
        let platform = Some(platform.to_owned());
        let spec = BuildSpec::plain(dir.path().to_owned(), Digest::sha256(b""), platform);
        let found = images(&BuildSpec { access, ..spec })?;
        Ok(found.into_iter().map(|base| base.image).collect())
    }

    #[test]
    fn platform_that_may_be_the_address_of_a_registry_is_refused() {
        let text = "FROM --platform=linux/amd64 $TARGETARCH/x@sha256:00\n";
        for platform in ["linux/10.0.0.5", "linux/10.0.0.5:80", "10.0.0.5", "linux/arm64/x", ""] {
            let refused = found(text, platform, ImageAccess::default()).expect_err(platform);
            assert_eq!(refused.kind, FailureKind::Refused, "{platform}");
            assert!(refused.message.contains("linux/amd64"), "{}", refused.message);
            assert!(found("FROM a\n", platform, ImageAccess::Everything).is_ok(), "{platform}");
        }
        for (platform, expected) in [
            ("linux/amd64", "amd64/x@sha256:00"),
            ("linux/aarch64", "arm64/x@sha256:00"),
            ("linux/arm64/v8", "arm64/x@sha256:00"),
        ] {
            let found = found(text, platform, ImageAccess::default()).expect(platform);
            assert_eq!(found, [expected], "{platform}");
        }
    }

    #[test]
    fn image_that_a_usual_platform_does_not_have_is_checked() {
        let refused = found("FROM $TARGETARCH\n", "linux/386", ImageAccess::default());
        let refused = refused.expect_err("the beginning of an id");
        assert_eq!(refused.kind, FailureKind::Refused);
        assert!(refused.message.starts_with("line 1 of the Dockerfile: "), "{}", refused.message);
        let text = "FROM a-$TARGETARCH$TARGETVARIANT\n";
        let found = found(text, "linux/arm", ImageAccess::default()).expect("a public image");
        assert_eq!(found, ["a-armv7"]);
    }
}
