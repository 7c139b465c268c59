//! The platform of a build for a user of a server, and the images whose names depend on it. A server checks the
//! names of a usual platform: it does not know the one of an engine.

use std::collections::{BTreeMap, BTreeSet};

use rollout_environment::dockerfile::{BaseImage, BuildFetchKind, Dockerfile, build_fetches};
use rollout_environment::registry_lookups::RegistryLookups;
use rollout_environment::{Failure, FailureKind};

use super::base_images;
use super::build::BuildSpec;

/// The platforms of such builds, as builders write them in `TARGETPLATFORM`. They take any text for an
/// architecture, also the address of a registry.
const PLATFORMS: [&str; 15] = [
    "linux/386",
    "linux/amd64",
    "linux/amd64/v2",
    "linux/amd64/v3",
    "linux/amd64/v4",
    "linux/arm/v5",
    "linux/arm/v6",
    "linux/arm/v7",
    "linux/arm/v8",
    "linux/arm64",
    "linux/loong64",
    "linux/mips64le",
    "linux/ppc64le",
    "linux/riscv64",
    "linux/s390x",
];

/// A platform as builders write it, by the rules of containerd's package `platforms`. An architecture alone is
/// one of Linux.
fn normal(platform: &str) -> String {
    let lower = platform.to_ascii_lowercase();
    let (os, arch, variant) = match lower.split('/').collect::<Vec<_>>().as_slice() {
        [arch] => ("linux", *arch, ""),
        [os, arch] => (*os, *arch, ""),
        // No builder takes an empty variant.
        [os, arch, variant] if !variant.is_empty() => (*os, *arch, *variant),
        _ => return platform.to_owned(),
    };
    let (arch, variant) = match (arch, variant) {
        ("i386", _) => ("386", ""),
        ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", ""),
        ("x86_64" | "x86-64", other) => ("amd64", other),
        ("aarch64" | "arm64", "8" | "v8" | "v8.0") => ("arm64", ""),
        ("aarch64", other) => ("arm64", other),
        ("armhf", _) | ("arm", "" | "7") => ("arm", "v7"),
        ("armel", _) | ("arm", "6") => ("arm", "v6"),
        ("arm", "5") => ("arm", "v5"),
        ("arm", "8") => ("arm", "v8"),
        other => other,
    };
    let end = if variant.is_empty() { "" } else { "/" };
    format!("{os}/{arch}{end}{variant}")
}

/// An architecture of [`std::env::consts::ARCH`] as builders name it. Their hosts of PowerPC and MIPS are
/// little-endian.
fn builders_name(arch: &str) -> &str {
    match arch {
        "loongarch64" => "loong64",
        "mips64" => "mips64le",
        "powerpc64" => "ppc64le",
        "x86" => "386",
        other => other,
    }
}

/// The platform that a builder is asked for. A guarded build has the form that was checked: some builders keep
/// the case and the other names of an architecture in `TARGETARCH`.
pub(super) fn requested(build: &BuildSpec) -> Option<String> {
    let platform = build.platform.as_deref()?;
    Some(if build.is_guarded() { normal(platform) } else { platform.to_owned() })
}

/// The arguments that every build has, with the values of build arguments of the same name.
pub(super) fn arguments(build: &BuildSpec) -> BTreeMap<String, String> {
    let own = normal(builders_name(std::env::consts::ARCH));
    let target = build.platform.as_deref().map_or_else(|| own.clone(), normal);
    let mut arguments = BTreeMap::new();
    for (kind, platform) in [("BUILD", &own), ("TARGET", &target)] {
        let mut parts = platform.splitn(3, '/');
        arguments.insert(format!("{kind}PLATFORM"), platform.clone());
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
    let is_known = |text: &str| PLATFORMS.contains(&normal(text).as_str());
    let unknown = build.platform.as_deref().filter(|text| !is_known(text));
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
    use rollout_environment::image_access::ImageAccess;
    use rollout_protocol::digest::Digest;

    use super::*;

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
        for platform in [
            "linux/10.0.0.5",
            "linux/10.0.0.5:80",
            "10.0.0.5",
            "linux/arm64/x",
            "linux/amd64/",
            "linux/amd64/v2/x",
            "linux/",
            "/amd64",
            "windows/amd64",
            "",
        ] {
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
    fn platform_in_another_form_is_the_one_that_builders_write() {
        let text = "FROM a-$TARGETPLATFORM-$TARGETARCH-b$TARGETVARIANT\n";
        for (platform, arch, variant) in [
            ("linux/amd64/v4", "amd64", "v4"),
            ("linux/x86-64", "amd64", ""),
            ("linux/x86_64/v3", "amd64", "v3"),
            ("linux/amd64/v1", "amd64", ""),
            ("Linux/AMD64", "amd64", ""),
            ("arm64", "arm64", ""),
            ("AArch64", "arm64", ""),
            ("linux/arm64/8", "arm64", ""),
            ("linux/arm/v8", "arm", "v8"),
            ("linux/arm/8", "arm", "v8"),
            ("linux/arm", "arm", "v7"),
            ("linux/arm/6", "arm", "v6"),
            ("armhf", "arm", "v7"),
            ("linux/armel", "arm", "v6"),
            ("linux/i386", "386", ""),
            ("loong64", "loong64", ""),
        ] {
            let end = if variant.is_empty() { "" } else { "/" };
            let whole = format!("linux/{arch}{end}{variant}");
            let images = found(text, platform, ImageAccess::default()).expect(platform);
            assert_eq!(images, [format!("a-{whole}-{arch}-b{variant}")], "{platform}");
            let plain = |access| {
                let platform = Some(platform.to_owned());
                let spec = BuildSpec::plain("x".into(), Digest::sha256(b""), platform);
                requested(&BuildSpec { access, ..spec })
            };
            assert_eq!(plain(ImageAccess::default()), Some(whole), "{platform}");
            assert_eq!(plain(ImageAccess::Everything).as_deref(), Some(platform));
        }
        for platform in PLATFORMS {
            assert_eq!(normal(platform), platform);
        }
    }

    #[test]
    fn architecture_of_a_host_is_named_as_builders_name_it() {
        for arch in [
            "x86",
            "x86_64",
            "aarch64",
            "arm",
            "loongarch64",
            "mips64",
            "powerpc64",
            "riscv64",
            "s390x",
        ] {
            let platform = normal(builders_name(arch));
            assert!(PLATFORMS.contains(&platform.as_str()), "{arch}: {platform}");
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
