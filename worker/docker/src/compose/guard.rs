//! The second check of images and builds of tasks whose author may not use the network of the engine's
//! host. The server of such a task checked its files by the same rules. Here they are applied to what
//! `docker compose` made of the files, and before anything is asked of the engine: the program may read a
//! file in another way than the server.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_base::supervise;
use rollout_environment::FailureKind;
use rollout_environment::dockerfile::{FRONTEND_ARGUMENT, build_fetches, is_preprocessed};
use rollout_environment::image_access::{BuildRefusal, ImageAccess, ImageRefusal};
use rollout_environment::registry_lookups::RegistryLookups;
use rollout_protocol::limits;
use serde_json::Value;

use super::MESSAGE_BYTES;
use super::render::{self, ServiceImage};
use super::rules::{entries, literal};

/// Finds the addresses of the name of a registry, or tells why it does not.
type RegistryLookup<'a> = dyn Fn(&str) -> Result<Vec<IpAddr>, &'static str> + 'a;

/// Rules for the images and builds of a resolved file.
struct ModelGuard<'a> {
    access: &'a ImageAccess,
    /// Name of the environment's own image.
    own: &'a str,
    /// The build context, with links resolved.
    root: &'a Path,
    look_up: &'a RegistryLookup<'a>,
}

/// The reason why a resolved file is refused, with the service and the key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelRefusal {
    pub(super) kind: FailureKind,
    text: String,
}

impl ModelRefusal {
    fn new(text: String) -> Self {
        Self { kind: FailureKind::Refused, text }
    }

    /// The same, of a part of the file.
    fn at(self, place: &str) -> Self {
        Self { text: format!("{place}: {}", self.text), ..self }
    }
}

impl From<ImageRefusal> for ModelRefusal {
    fn from(refusal: ImageRefusal) -> Self {
        let kind =
            if refusal.is_unresolved() { FailureKind::Unreachable } else { FailureKind::Refused };
        Self { kind, text: refusal.to_string() }
    }
}

impl From<BuildRefusal> for ModelRefusal {
    fn from(refused: BuildRefusal) -> Self {
        let text = refused.to_string();
        Self { text, ..Self::from(refused.refusal) }
    }
}

impl fmt::Display for ModelRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text[..self.text.floor_char_boundary(MESSAGE_BYTES)];
        write!(f, "{text}: the server of this run does not allow it")
    }
}

/// Checks a resolved file, and gives it back. `own` is the name of the environment's own image.
///
/// # Errors
/// [`ModelRefusal`] of the first image or build that is not allowed.
pub(super) async fn check(
    model: Value,
    access: ImageAccess,
    own: String,
    root: PathBuf,
) -> Result<Value, ModelRefusal> {
    supervise::blocking(move || {
        let lookups = RegistryLookups::new(|| false);
        let look_up = |name: &str| lookups.addresses(name);
        let guard = ModelGuard { access: &access, own: &own, root: &root, look_up: &look_up };
        guard.check(&model)?;
        Ok(model)
    })
    .await
}

impl ModelGuard<'_> {
    fn check(&self, model: &Value) -> Result<(), ModelRefusal> {
        for (name, service) in entries(model, "services") {
            let checked = self.service(service);
            checked.map_err(|refusal| refusal.at(&format!("service `{name}`")))?;
        }
        Ok(())
    }

    fn service(&self, service: &Value) -> Result<(), ModelRefusal> {
        let image = render::text(service, "image").map(literal);
        if let Some(image) = image.filter(|image| image != self.own)
            && let Some(refusal) = self.access.refusal(&image, self.look_up)
        {
            return Err(ModelRefusal::from(refusal).at("`image`"));
        }
        match render::image(service, None) {
            Some(ServiceImage::Built { context, dockerfile, args, target: _ }) => {
                self.build(&context, &dockerfile, &args).map_err(|refusal| refusal.at("`build`"))
            }
            // A service without an image has another message.
            Some(ServiceImage::Named(_) | ServiceImage::Prepared) | None => Ok(()),
        }
    }

    fn build(
        &self,
        context: &Path,
        dockerfile: &str,
        args: &BTreeMap<String, String>,
    ) -> Result<(), ModelRefusal> {
        if args.contains_key(FRONTEND_ARGUMENT) {
            return Err(ModelRefusal::new(format!("the argument `{FRONTEND_ARGUMENT}`")));
        }
        if is_preprocessed(Path::new(dockerfile)) {
            let text = format!("the Dockerfile `{dockerfile}`, which some builders preprocess");
            return Err(ModelRefusal::new(text));
        }
        let text = self.dockerfile(context, dockerfile)?;
        for fetch in build_fetches(&text, args) {
            if let Some(refused) = self.access.build_refusal(&fetch, self.look_up) {
                let place = format!("line {} of `{dockerfile}`", fetch.line);
                return Err(ModelRefusal::from(refused).at(&place));
            }
        }
        Ok(())
    }

    /// The text of a Dockerfile, a regular file in a directory of the task. No link on the way leaves that
    /// directory: a builder has no other files, and ends such a link at one of them.
    fn dockerfile(&self, context: &Path, dockerfile: &str) -> Result<String, ModelRefusal> {
        let refused = |what: &str, error: std::io::Error| {
            ModelRefusal::new(format!("{what}, which cannot be read ({error})"))
        };
        let root = ConfinedDir::open(self.root).map_err(|e| refused("the task's files", e))?;
        let context = root.directory(context).map_err(|e| refused("a context", e))?;
        context
            .read_text(Path::new(dockerfile), limits::CONFIG_FILE_BYTES)
            .map_err(|e| refused(&format!("the Dockerfile `{dockerfile}`"), e))
    }
}
