//! Images with an agent installed, built on top of the images of tasks.

use std::collections::BTreeMap;
use std::io;

use bollard::models::ImageInspect;
use rollout_base::supervise::{self, BlockingDrop};
use rollout_environment::{
    Failure, FailureKind, Image, ImageRequest, ImageSource, InstallRequest, compose,
};
use rollout_protocol::digest::{Digest, DigestHasher};
use tempfile::TempDir;

use super::build::{self, BuildSpec};
use super::image::{self, ImageManager};

/// Name of the script in the build context, and of its copy while it runs.
const SCRIPT: &str = "install.sh";
const SCRIPT_IN_IMAGE: &str = "/tmp/rollout-install.sh";

impl ImageManager {
    /// See [`Provider::install`](rollout_environment::Provider::install). Images of tasks with
    /// services have no build of their own, so there is no image to build on.
    pub(super) async fn install(
        &self,
        base: &Image,
        request: InstallRequest,
        platform: Option<String>,
    ) -> Result<Option<Image>, Failure> {
        if base.reference.starts_with(compose::SERVICES_REFERENCE_PREFIX) {
            return Ok(None);
        }
        let Some(found) = image::inspect(self.client(), &base.reference).await? else {
            let message = format!("cannot install an agent in {}: it is gone", base.reference);
            return Err(Failure::new(FailureKind::Service, message));
        };
        let user = user(&found);
        if let Some(user) = user.filter(|user| !is_plain_user(user)) {
            let image = &base.reference;
            let message = format!(
                "cannot install an agent in {image}: its user {user:?} is no plain name or number"
            );
            return Err(Failure::new(FailureKind::Refused, message));
        }
        let failed = |error: io::Error| {
            let message =
                format!("cannot write the files that install an agent in {}", base.reference);
            Failure::local(FailureKind::Bug, message, error)
        };
        let text = dockerfile(&base.reference, &request.env, user);
        let (file, script) = (text.clone(), request.script.clone());
        let directory = supervise::blocking(move || write_context(&file, &script)).await;
        let directory = directory.map_err(failed)?;
        let digest =
            content_digest(found.id.as_deref().unwrap_or_default(), &text, &request.script);
        let context = directory.path().to_owned();
        let spec =
            BuildSpec { is_local: true, ..BuildSpec::plain(context.clone(), digest, platform) };
        let image = ImageRequest {
            source: ImageSource::Context { digest, dir: context },
            force_build: false,
            timeout: request.timeout,
            log: None,
            proxies: request.proxies,
            settings: request.settings,
            labels: request.labels,
        };
        self.prepare_build(spec, &image).await.map(Some)
    }
}

/// The user of an image's commands; `None` for root.
fn user(image: &ImageInspect) -> Option<&str> {
    let user = image.config.as_ref()?.user.as_deref()?;
    Some(user).filter(|user| !user.is_empty())
}

/// Whether a user is a name or number, with or without that of a group: an image may have any text, and its
/// lines would be instructions.
fn is_plain_user(user: &str) -> bool {
    let is_plain = |part: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        !part.is_empty() && part.chars().all(is_part)
    };
    let (name, group) = user.split_once(':').unwrap_or((user, "0"));
    is_plain(name) && is_plain(group)
}

/// Writes a build context to a temporary directory. Blocks.
fn write_context(dockerfile: &str, script: &str) -> io::Result<BlockingDrop<TempDir>> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join(build::DOCKERFILE), dockerfile)?;
    std::fs::write(directory.path().join(SCRIPT), script)?;
    Ok(BlockingDrop::new(directory))
}

/// The Dockerfile. Variables hold for the script only, and the user of the image stays.
fn dockerfile(base: &str, env: &BTreeMap<String, String>, user: Option<&str>) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let env: Vec<_> =
        env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
    let user = user.map(|user| format!("USER {user}\n")).unwrap_or_default();
    let run = format!("env {}bash {SCRIPT_IN_IMAGE}", env.concat());
    let run = serde_json::json!(["sh", "-c", run]);
    format!("FROM {base}\nUSER root\nCOPY {SCRIPT} {SCRIPT_IN_IMAGE}\nRUN {run}\n{user}")
}

/// Digest of everything that the image depends on: the base by its id, not by its name.
fn content_digest(base_id: &str, dockerfile: &str, script: &str) -> Digest {
    let mut hasher = DigestHasher::default();
    for part in ["agent", base_id, dockerfile, script] {
        hasher.update_part(part.as_bytes());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use rollout_environment::image_access::ImageAccess;

    use super::super::base_triggers;
    use super::*;

    #[test]
    fn dockerfile_runs_the_script_as_root_and_keeps_the_user() {
        let env = BTreeMap::from([("A".to_owned(), "it's \"1\" $HOME".to_owned())]);
        let text = dockerfile("rollout/task:1", &env, Some("app"));
        assert_eq!(
            text,
            "FROM rollout/task:1\nUSER root\nCOPY install.sh /tmp/rollout-install.sh\n\
             RUN [\"sh\",\"-c\",\"env A='it'\\\\''s \\\"1\\\" $HOME' bash /tmp/rollout-install.sh\"]\n\
             USER app\n"
        );
        assert!(!dockerfile("x", &BTreeMap::new(), None).contains("USER app"));
    }

    #[test]
    fn user_of_image_is_a_plain_name() {
        for user in ["app", "1000", "1000:1000", "www-data:www_data", "a.b:0"] {
            assert!(is_plain_user(user), "{user}");
        }
        for user in [
            "root\nADD http://169.254.169.254/latest/user-data /x",
            "root\rADD http://10.0.0.5/x /x",
            "root \\",
            "root\u{85}",
            "a b",
            "$USER",
            "a:b:c",
            ":0",
            "a:",
            "",
            "r\u{f6}",
        ] {
            assert!(!is_plain_user(user), "{user:?}");
        }
    }

    #[test]
    fn dockerfile_is_plain_for_the_rules_of_a_server() {
        let directory = tempfile::tempdir().expect("a directory");
        let spec = BuildSpec::plain(directory.path().to_owned(), Digest::sha256(b""), None);
        let spec = BuildSpec { is_local: true, access: ImageAccess::default(), ..spec };
        let env = [("A", "cat <<E\n\u{1b}é → ${B#c} \\"), ("http_proxy", "http://h:1")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for user in [None, Some("app"), Some("1000:1000")] {
            let text = dockerfile("rollout/task:0123", &env, user);
            assert!(base_triggers::check_sent(&spec, &text).is_ok(), "{text}");
        }
    }

    #[test]
    fn digest_changes_with_base_script_and_variables() {
        let digests = [("1", "d", "s"), ("2", "d", "s"), ("1", "e", "s"), ("1", "d", "t")]
            .map(|(base, dockerfile, script)| content_digest(base, dockerfile, script));
        let distinct: std::collections::BTreeSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}
