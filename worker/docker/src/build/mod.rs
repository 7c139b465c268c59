//! Builds of one image.
//!
//! * `buildkit`, `classic`: the builders of an engine. BuildKit is used wherever an engine has it.
//! * `session`, `filesync`: the calls that BuildKit makes to its client during a build. They can
//!   read only the files of the build context and a CA bundle, never a secret, a key or a credential
//!   of this host.
//! * `ca_bundle`: the file that the commands of a build get, and that no image has.
//! * `progress`: the steps of a build, and the output of the failed one.
//! * `reason`: the builder's own words in the error of a build.
//! * `frontend`: the image that reads the Dockerfile, if it is not the engine's own.
//! * `log`, `context`: the log of a build, and the files that it sees.

mod buildkit;
mod ca_bundle;
mod classic;
mod context;
mod filesync;
mod frontend;
mod log;
mod progress;
mod reason;
mod session;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use bollard::query_parameters::BuildImageOptions;
use rollout_environment::dockerfile::{
    CACHE_NAMESPACE_ARGUMENT, Dockerfile, in_every_stage, with_images,
};
use rollout_environment::failed_builds::{FailedBuildLog, ImageFailure};
use rollout_environment::image_access::ImageAccess;
use rollout_environment::{
    BuildProxies, CaBundle, Failure, FailureKind, ProxyKey, registry_failure,
};
use rollout_protocol::digest::Digest;
use rollout_protocol::record::ImageBuild;

pub(super) use self::context::{digest, pack_all};
pub(super) use self::frontend::FrontendSelector;
use self::log::ImageBuildLog;
use self::session::OpenedSession;
use super::base_images::{self, ResolvedBases};
use super::client::DockerClient;
use super::labels;
use super::{base_platform, base_triggers};

pub(super) const DOCKERFILE: &str = "Dockerfile";

/// Names of the builders in records.
pub(super) const BUILDKIT: &str = "buildkit";
pub(super) const CLASSIC: &str = "classic";

/// Note on a build whose commands do not have the CA bundle.
const NO_BUNDLE: &str =
    "the engine has no BuildKit: the commands of builds do not have the CA bundle";

/// Specification of a build.
#[derive(Debug, Clone)]
pub(super) struct BuildSpec {
    /// The image's name.
    pub(super) tag: String,
    /// Digest of all inputs of the build but its base images.
    pub(super) recipe: String,
    /// Its base images.
    pub(super) base_images: ResolvedBases,
    /// The build context.
    pub(super) context: PathBuf,
    /// Digest of the context.
    pub(super) digest: Digest,
    /// Platform, when one is asked for.
    pub(super) platform: Option<String>,
    /// The Dockerfile, relative to the context.
    pub(super) dockerfile: String,
    /// Values of the build arguments.
    pub(super) args: BTreeMap<String, String>,
    /// Proxies of its commands.
    pub(super) proxies: BuildProxies,
    /// The key of their digest.
    pub(super) proxy_key: Arc<ProxyKey>,
    /// CA bundle of its commands, which is no input of the build.
    pub(super) ca_bundle: Option<CaBundle>,
    /// The stage to build, when it is not the last.
    pub(super) target: Option<String>,
    /// Whether its base image is one that the engine has and no registry knows; `digest` covers it.
    pub(super) is_local: bool,
    /// Whether a base image that was checked has triggers.
    pub(super) has_triggers: bool,
    /// The rules for its fetches. Unless they allow everything, its base images are those that were checked.
    pub(super) access: ImageAccess,
}

impl BuildSpec {
    /// The build of a context without options. The caller sets the tag.
    pub(super) fn plain(context: PathBuf, digest: Digest, platform: Option<String>) -> Self {
        Self {
            tag: String::new(),
            recipe: String::new(),
            base_images: Vec::new(),
            context,
            digest,
            platform,
            dockerfile: DOCKERFILE.to_owned(),
            args: BTreeMap::new(),
            proxies: BuildProxies::default(),
            proxy_key: Arc::default(),
            ca_bundle: None,
            target: None,
            is_local: false,
            has_triggers: false,
            access: ImageAccess::Everything,
        }
    }

    /// Whether the context is the build's only input.
    pub(super) fn is_plain(&self) -> bool {
        self.dockerfile == DOCKERFILE && self.args.is_empty() && self.target.is_none()
    }

    /// Whether it may not fetch everything.
    pub(super) fn is_guarded(&self) -> bool {
        self.access != ImageAccess::Everything
    }

    /// The name of the build in messages.
    fn title(&self) -> String {
        format!("cannot build {}", self.tag)
    }

    /// The build info of one of the builders.
    fn image_build(&self, builder: &str) -> ImageBuild {
        ImageBuild { builder: builder.to_owned(), bases: base_images::recorded(&self.base_images) }
    }

    fn options(&self, no_cache: bool, builder: &str) -> BuildImageOptions {
        let how = serde_json::to_string(&self.image_build(builder)).expect("plain data");
        let labels = [
            (labels::CONTEXT, self.digest.to_string()),
            (labels::RECIPE, self.recipe.clone()),
            (labels::BUILD, how),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value));
        let mut args = self.proxies.with(&self.args);
        // The cache mounts of a user's build are for no other build: the key of its image has no user.
        if self.is_guarded() && builder == BUILDKIT {
            args.insert(CACHE_NAMESPACE_ARGUMENT.to_owned(), self.recipe.clone());
        }
        let layer_host = self.proxies.layer_host(&self.proxy_key);
        BuildImageOptions {
            dockerfile: self.dockerfile.clone(),
            buildargs: (!args.is_empty()).then(|| args.into_iter().collect()),
            target: self.target.clone().unwrap_or_default(),
            t: Some(self.tag.clone()),
            nocache: no_cache,
            rm: true,
            forcerm: true,
            labels: Some(HashMap::from(labels)),
            extrahosts: layer_host.map(|host| format!("{host}:127.0.0.1")),
            platform: base_platform::requested(self).unwrap_or_default(),
            ..Default::default()
        }
    }
}

/// The Dockerfile for the classic builder. It leaves proxies out of the keys of its layers, as BuildKit, and
/// also names of hosts, but not the instructions before a layer: each stage begins with one that names the
/// set of proxies. Only triggers of its base image come before it.
///
/// # Errors
/// It needs BuildKit.
fn classic_text(build: &BuildSpec, text: &str) -> Result<String, Failure> {
    let what = build.title();
    // This builder reads the lines of here-documents as instructions.
    let file = Dockerfile::read(text);
    if build.is_guarded() && file.has_heredocs() {
        let message = format!("{what}: the builder of the engine reads no here-documents");
        return Err(Failure::new(FailureKind::Refused, message));
    }
    // It has no namespaces of cache mounts.
    if build.is_guarded() && file.has_mounts() {
        let message = format!("{what}: `RUN --mount` needs an engine with BuildKit");
        return Err(Failure::new(FailureKind::Refused, message));
    }
    let Some(proxies) = build.proxies.digest(&build.proxy_key) else { return Ok(text.to_owned()) };
    if build.has_triggers {
        let message = format!(
            "{what}: the builder of the engine uses layers of triggers (`ONBUILD`) that were made with \
             other proxies; the server of this run needs an engine with BuildKit for such base images"
        );
        return Err(Failure::new(FailureKind::Unsupported, message));
    }
    let mark = format!("LABEL {}={}", labels::PROXIES, &proxies.hex()[..32]);
    Ok(in_every_stage(text, &mark))
}

/// A build that ended without an image, before its log is attached.
enum BuildFailure {
    /// It failed.
    Failed(Failure),
    /// The engine does not have the builder, for this reason.
    NoBuilder(String),
}

impl From<Failure> for BuildFailure {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Builds the image; returns the builder that was used. Dropping the future cancels the build.
pub(super) async fn run(
    client: &DockerClient,
    frontends: &FrontendSelector,
    build: &BuildSpec,
    no_cache: bool,
) -> Result<ImageBuild, ImageFailure> {
    let what = build.title();
    let path = build.context.join(&build.dockerfile);
    let text = match tokio::fs::read(&path).await {
        Ok(bytes) => with_images(
            &String::from_utf8_lossy(&bytes),
            &base_images::by_digest(&build.base_images),
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = format!("{what}: the build context has no {}", build.dockerfile);
            return Err(Failure::new(FailureKind::Refused, message).into());
        }
        Err(error) => {
            let message = format!("{what}: cannot read {}", build.dockerfile);
            return Err(Failure::local(FailureKind::Refused, message, error).into());
        }
    };
    base_triggers::check_sent(build, &text)?;
    let mut log = ImageBuildLog::default();
    let mut builder = BUILDKIT;
    let mut built = Err(BuildFailure::NoBuilder(String::new()));
    if client.has_buildkit() {
        let work = buildkit::run(client, frontends, build, &text, no_cache, &mut log);
        built = Box::pin(work).await;
        if let Err(BuildFailure::NoBuilder(why)) = &built {
            client.disable_buildkit(why);
        }
    }
    if matches!(built, Err(BuildFailure::NoBuilder(_))) {
        let text = classic_text(build, &text)?;
        builder = CLASSIC;
        if build.ca_bundle.is_some() {
            log.add(&format!("{NO_BUNDLE}\n"));
            tracing::warn!(image = build.tag, "{NO_BUNDLE}");
        }
        built = classic::run(client, build, &text, no_cache, &mut log).await;
    }
    match built {
        Ok(()) => {
            tracing::debug!(image = build.tag, builder, "image built");
            Ok(build.image_build(builder))
        }
        Err(BuildFailure::Failed(failure)) => Err(image_failure(failure, log).await),
        Err(BuildFailure::NoBuilder(why)) => {
            let message = format!("{what}: the engine has no builder: {why}");
            Err(image_failure(Failure::new(FailureKind::Refused, message), log).await)
        }
    }
}

async fn image_failure(failure: Failure, mut log: ImageBuildLog) -> ImageFailure {
    let mut broken = ImageFailure::from(failure);
    let message = broken.message.lines().next().unwrap_or_default();
    log.add(&format!("\n{message}\n"));
    broken.log = FailedBuildLog::save(log.into_text()).await;
    broken
}

/// The failure of a step to which the engine can give no network. It is the engine's fault, although the
/// builder reports it for an instruction. The builder's own words begin with it.
fn network_failure(what: &str, own_words: &str, said: &str) -> Option<Failure> {
    const TEXTS: [&str; 7] = [
        "could not find bridge",
        "failed to create endpoint",
        "failed to set up container networking",
        "network bridge not found",
        "error creating veth",
        "adding interface veth",
        "setup network: ",
    ];
    if !TEXTS.iter().any(|text| own_words.starts_with(text)) {
        return None;
    }
    let message = format!(
        "{what}: the engine has no network for the steps of builds: {said}; check its bridge, such as \
         `docker0`, or restart the engine"
    );
    Some(Failure::new(FailureKind::Service, message))
}

/// The kind of a failure with these words of the builder. An error about an instruction is the
/// Dockerfile's fault, unless it is about the registry of a base image or the engine itself.
fn failure_kind(own_words: &str, from_engine: FailureKind) -> FailureKind {
    if from_engine != FailureKind::Service {
        return from_engine;
    }
    registry_failure::kind_for_registry(own_words).unwrap_or(FailureKind::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_each_set_of_proxies_are_apart() {
        let hosts = |proxy: Option<&str>| {
            let env = proxy.map(|proxy| ("https_proxy".to_owned(), proxy.to_owned()));
            let plain = BuildSpec::plain(PathBuf::new(), Digest::sha256(b""), None);
            let build =
                BuildSpec { proxies: BuildProxies::of(&env.into_iter().collect()), ..plain };
            build.options(false, BUILDKIT).extrahosts
        };
        assert_eq!(hosts(None), None);
        let (one, other) = (hosts(Some("http://p:1")), hosts(Some("http://u:secret@p:1")));
        let other = other.expect("a mark");
        assert!(one.is_some_and(|one| one != other));
        assert!(other.ends_with(".invalid:127.0.0.1") && !other.contains("secret"), "{other}");
    }

    #[test]
    fn cache_mounts_of_guarded_builds_are_apart() {
        let namespace = |access, recipe: &str, builder| {
            let plain = BuildSpec::plain(PathBuf::new(), Digest::sha256(b""), None);
            let args = [(CACHE_NAMESPACE_ARGUMENT.to_owned(), "of another".to_owned())].into();
            let build = BuildSpec { access, recipe: recipe.to_owned(), args, ..plain };
            let mut args = build.options(false, builder).buildargs.expect("arguments");
            args.remove(CACHE_NAMESPACE_ARGUMENT).expect("given")
        };
        for recipe in ["one", "two"] {
            assert_eq!(namespace(ImageAccess::default(), recipe, BUILDKIT), recipe);
        }
        assert_eq!(namespace(ImageAccess::Everything, "one", BUILDKIT), "of another");
    }

    #[test]
    fn layers_of_the_classic_builder_are_apart_for_each_set_of_proxies() {
        let build = |proxy: Option<&str>| {
            let env = proxy.map(|proxy| ("https_proxy".to_owned(), proxy.to_owned()));
            let plain = BuildSpec::plain(PathBuf::new(), Digest::sha256(b""), None);
            let proxies = BuildProxies::of(&env.into_iter().collect());
            BuildSpec { proxies, access: ImageAccess::default(), ..plain }
        };
        let text = "FROM a AS b\nRUN c\nFROM b\nRUN d\n";
        let sent = |build: &BuildSpec| classic_text(build, text).expect("it can be built");
        assert_eq!(sent(&build(None)), text);
        let (one, other) =
            (sent(&build(Some("http://p:1"))), sent(&build(Some("http://u:pw@p:1"))));
        assert_ne!(one, other);
        assert_eq!(other.matches("\nLABEL dev.rollout.proxies=").count(), 2, "{other}");
        assert!(other.starts_with("FROM a AS b\nLABEL ") && !other.contains("pw"), "{other}");
        for (has_triggers, text, kind) in [
            (true, text, FailureKind::Unsupported),
            (false, "FROM a\nRUN <<E\nE\n", FailureKind::Refused),
            (
                false,
                "FROM a\nRUN --network=none --mount=type=cache,target=/c d\n",
                FailureKind::Refused,
            ),
            (false, "FROM a\nONBUILD RUN --mount=type=cache,target=/c d\n", FailureKind::Refused),
        ] {
            let build = BuildSpec { has_triggers, ..build(Some("http://p:1")) };
            assert_eq!(classic_text(&build, text).expect_err(text).kind, kind, "{text}");
        }
        let build = BuildSpec { has_triggers: true, ..build(None) };
        assert_eq!(sent(&build), text, "without proxies, triggers are like other steps");
    }

    #[test]
    fn build_without_network_of_engine_is_its_failure() {
        let missing = "failed to create endpoint x on network bridge: adding interface veth1 to bridge \
                       docker0 failed: could not find bridge docker0: no such network interface";
        let found = |said: &str| network_failure("cannot build x", &reason::own_words(said), said);
        for said in [
            missing,
            "network bridge not found",
            "ERROR: failed to solve: process \"/bin/sh -c a\" did not complete successfully: network bridge \
             not found",
            "failed to solve with frontend dockerfile.v0: failed to build LLB: executor failed running [sh -c \
             a]: network bridge not found",
            "failed to set up container networking: failed to create endpoint x on network bridge: y",
            "Cannot start container 0123456789ab: adding interface veth1 to bridge docker0 failed: could not \
             find bridge docker0: no such network interface",
            "building at STEP \"RUN a\": setup network: netavark: create bridge: Operation not supported",
        ] {
            let failure = found(said).expect(said);
            assert_eq!(failure.kind, FailureKind::Service, "{said}");
            assert!(failure.message.contains("no network for the steps of builds"), "{failure}");
            assert!(failure.message.contains(said), "{failure}");
        }
        for other in [
            "The command '/bin/sh -c echo could not find bridge' returned a non-zero code: 1",
            "manifest for x not found",
            "\"/failed to create endpoint\": not found",
            "dockerfile parse error on line 2: unknown instruction: failed to create endpoint",
            "COPY failed: file not found in build context: stat failed to create endpoint",
            r#"process "/bin/sh -c \": failed to create endpoint" did not complete successfully: x"#,
            "executor failed running [/bin/sh -c x]: failed to create endpoint]: no such file",
        ] {
            assert!(found(other).is_none(), "{other}");
        }
    }

    #[test]
    fn failure_of_a_command_is_no_outage_by_its_words() {
        let kind = |said: &str| failure_kind(&reason::own_words(said), FailureKind::Service);
        let step = "The command '/bin/sh -c echo connection refused' returned a non-zero code: 1";
        assert_eq!(kind(step), FailureKind::Refused);
        let path = "failed to compute cache key: \"/no such host\": not found";
        assert_eq!(kind(path), FailureKind::Refused);
        let registry = "failed to solve: x: Get \"https://h/v2/\": dial tcp: connection refused";
        assert_eq!(kind(registry), FailureKind::Unreachable);
    }
}
