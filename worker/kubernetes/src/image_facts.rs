//! What pods of an image have shown about it: its user, and where this user cannot place files.
//!
//! Files are placed by the user of the container, who may not be able to write to the root of the file
//! system. Directories that this user cannot make or fill become volumes, which every user may write
//! to. Only a pod of the image shows which they are, so the first pod may be replaced by another one.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, Volume, VolumeMount};
use lru::LruCache;
use rollout_environment::{Failure, FailureKind, Upload};

use super::manifest::MAIN;

/// Directories that are filled after the creation of an environment.
const FILLED_LATER: [&str; 9] = [
    "/commands",
    "/cost",
    "/logs",
    "/oracle",
    "/output",
    "/review",
    "/rollout",
    "/solution",
    "/tests",
];

/// Those of every task's own files, which hide the image's. The others are used by some tasks only.
const HIDES_CONTENT: [&str; 5] = ["/logs", "/oracle", "/rollout", "/solution", "/tests"];

/// Pods that one creation may replace by pods with more volumes.
const MAX_REPLACED: usize = 2;

/// Limit of remembered images.
const IMAGES: NonZeroUsize = NonZeroUsize::new(1_000).expect("not zero");

/// Start of the kubelet's error for a user whose number it does not know.
const NAMED_USER: &str = "image has non-numeric user (";

/// The number of an image's user and of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageUser {
    pub(super) user: i64,
    pub(super) group: i64,
}

/// What is known of one image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    /// Directories that become volumes.
    pub(super) volumes: BTreeSet<String>,
    /// Its user, if the kubelet needs the number.
    pub(super) user: Option<ImageUser>,
}

/// What is known of the images of this worker's pods.
#[derive(Debug)]
pub(super) struct KnownImages(Mutex<LruCache<String, ImageFacts>>);

impl Default for KnownImages {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(IMAGES)))
    }
}

impl KnownImages {
    pub(super) fn get(&self, key: &str) -> ImageFacts {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).cloned().unwrap_or_default()
    }

    pub(super) fn set(&self, key: &str, facts: ImageFacts) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.put(key.to_owned(), facts);
    }
}

/// The key of the image and the user of a pod's environment.
pub(super) fn key(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let user = |container: &Container| {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_user);
        let shared = spec.and_then(|spec| spec.security_context.as_ref()?.run_as_user);
        own.or(shared)
    };
    let main = main_container(pod);
    format!("{} {:?}", image(pod).unwrap_or_default(), main.and_then(user))
}

/// The image of a pod's environment.
pub(super) fn image(pod: &Pod) -> Option<&str> {
    main_container(pod)?.image.as_deref()
}

fn main_container(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == MAIN)
}

impl ImageFacts {
    /// Adds the volumes that `pod` lacked, the `replaced`th pod of its creation. After the last pod that may
    /// be replaced, every directory that may hide the image's content is one, too.
    ///
    /// # Errors
    /// [`FailureKind::Refused`] after too many pods: each one lacked other volumes.
    pub(super) fn add_volumes(
        &mut self,
        more: BTreeSet<String>,
        replaced: usize,
        pod: &Pod,
    ) -> Result<(), Failure> {
        if replaced > MAX_REPLACED {
            let places: Vec<_> = more.into_iter().collect();
            let text = format!(
                "cannot create a pod of the image {}: in each of {replaced} pods its user could not write to \
                 other directories, in the last one to {}; let the image give them to its user",
                image(pod).unwrap_or_default(),
                places.join(", ")
            );
            return Err(Failure::new(FailureKind::Refused, text));
        }
        self.volumes.extend(more);
        if replaced == MAX_REPLACED {
            self.volumes.extend(HIDES_CONTENT.map(str::to_owned));
        }
        Ok(())
    }

    /// Changes the pod of an environment accordingly.
    pub(super) fn apply(&self, pod: &mut Pod) {
        let Some(spec) = pod.spec.as_mut() else { return };
        let Some(main) = spec.containers.iter_mut().find(|one| one.name == MAIN) else { return };
        if let Some(user) = self.user {
            let context = main.security_context.get_or_insert_default();
            (context.run_as_user, context.run_as_group) = (Some(user.user), Some(user.group));
        }
        let mounts = main.volume_mounts.get_or_insert_default();
        for (number, path) in self.volumes.iter().enumerate() {
            if mounts.iter().any(|mount| mount.mount_path.trim_end_matches('/') == path) {
                continue;
            }
            let name = format!("place-{number}");
            // Before mounts below it.
            mounts.insert(
                0,
                VolumeMount {
                    name: name.clone(),
                    mount_path: path.clone(),
                    ..VolumeMount::default()
                },
            );
            let empty_dir = Some(EmptyDirVolumeSource::default());
            let volume = Volume { name, empty_dir, ..Volume::default() };
            spec.volumes.get_or_insert_default().push(volume);
        }
    }
}

/// The directories at the root into which files will be placed, also by `uploads`.
pub(super) fn places(uploads: &[Upload]) -> Vec<String> {
    let of_upload = |upload: &Upload| match upload {
        Upload::File { path, .. } => top_directory(path, true),
        Upload::Dir { path }
        | Upload::FreshDir { path }
        | Upload::Archive { path, .. }
        | Upload::Merge { path, .. } => top_directory(path, false),
    };
    let later = FILLED_LATER.map(str::to_owned);
    let all: BTreeSet<String> = uploads.iter().filter_map(of_upload).chain(later).collect();
    all.into_iter().collect()
}

/// The directory at the root that has `path` below it, or is it.
fn top_directory(path: &str, is_file: bool) -> Option<String> {
    let path = path.trim_matches('/');
    let first = match path.split_once('/') {
        Some((first, _)) => first,
        None if is_file => return None,
        None => path,
    };
    let is_plain = !first.is_empty() && !first.contains(char::is_whitespace);
    is_plain.then(|| format!("/{first}"))
}

/// The directories that can become volumes, of the `places` that the user cannot fill. A `+` marks one
/// that is not empty or cannot be read: a volume would hide its content. Other words are the image's own.
pub(super) fn possible_volumes(closed: &str, places: &[String]) -> BTreeSet<String> {
    let possible = |word: &str| match word.strip_prefix('+') {
        Some(path) => HIDES_CONTENT.contains(&path).then(|| path.to_owned()),
        None => Some(word.to_owned()),
    };
    let is_place = |path: &String| places.contains(path);
    closed.split_whitespace().filter_map(possible).filter(is_place).collect()
}

/// The name of the user whose number a kubelet needs, if a start failed for the want of it.
pub(super) fn named_user(failure: &Failure) -> Option<&str> {
    let (_, rest) = failure.message.split_once(NAMED_USER)?;
    let (name, _) = rest.split_once(')')?;
    (failure.kind == FailureKind::Refused).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_directories_at_the_root() {
        let uploads = [
            Upload::File { path: "/instruction.md".into(), bytes: "x".into(), executable: false },
            Upload::File { path: "/state/a/b".into(), bytes: "x".into(), executable: false },
            Upload::Merge { path: "/app/".into(), tar: "/x".into() },
            Upload::Dir { path: "/my dir/x".into() },
        ];
        let places = places(&uploads);
        for (path, is_place) in
            [("/state", true), ("/app", true), ("/tests", true), ("/instruction.md", false)]
        {
            assert_eq!(places.iter().any(|place| place == path), is_place, "{path}");
        }
        assert!(!places.iter().any(|place| place.contains(' ')), "{places:?}");
    }

    #[test]
    fn volume_hides_only_content_of_places_that_are_filled() {
        let asked = ["/app", "/logs", "/output", "/state", "/tests"].map(str::to_owned);
        let found = possible_volumes(" /logs +/tests +/app +/output /state /x123", &asked);
        assert_eq!(found, BTreeSet::from(["/logs", "/state", "/tests"].map(str::to_owned)));
    }

    #[test]
    fn user_of_failed_start_is_found() {
        let text = "cannot start the container of the pod x: CreateContainerConfigError: container has \
                    runAsNonRoot and image has non-numeric user (solver), cannot verify user is \
                    non-root (pod: \"x\", container: main)";
        assert_eq!(named_user(&Failure::new(FailureKind::Refused, text)), Some("solver"));
        assert_eq!(named_user(&Failure::new(FailureKind::Refused, "no such image")), None);
    }
}
