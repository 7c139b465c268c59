//! Healthchecks of images. The engine runs none of them: it would do so as long as the container lives, also
//! while a verifier runs, with files that the agent may have changed.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::models::ImageInspect;
use lru::LruCache;
use rollout_environment::{Failure, ImageHealthcheck};

use super::client::DockerClient;
use super::image;

/// Limit of remembered images.
const IMAGES: NonZeroUsize = NonZeroUsize::new(1_000).expect("not zero");

/// The engine's values for those that an image does not name.
const INTERVAL: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_secs(30);
const RETRIES: u32 = 3;

/// The healthchecks of images by id, so that the engine is asked once for each.
#[derive(Debug)]
pub(super) struct ImageHealthchecks(Mutex<LruCache<String, Option<ImageHealthcheck>>>);

impl Default for ImageHealthchecks {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(IMAGES)))
    }
}

impl ImageHealthchecks {
    /// The healthcheck of the image with this id, if it has one.
    pub(super) async fn find(
        &self,
        client: &DockerClient,
        id: &str,
    ) -> Result<Option<ImageHealthcheck>, Failure> {
        let known = self.lock().get(id).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // An image that is gone may come again, and an engine may name none.
        if id.is_empty() {
            return Ok(None);
        }
        let Some(found) = image::inspect(client, id).await? else { return Ok(None) };
        let check = of_image(&found);
        self.lock().put(id.to_owned(), check.clone());
        Ok(check)
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, Option<ImageHealthcheck>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The healthcheck in the engine's description of an image.
fn of_image(image: &ImageInspect) -> Option<ImageHealthcheck> {
    let config = image.config.as_ref()?;
    let check = config.healthcheck.as_ref()?;
    let argv = argv(check.test.as_deref()?, config.shell.as_deref())?;
    let interval = duration(check.interval).unwrap_or(INTERVAL);
    let retries = check.retries.and_then(|retries| u32::try_from(retries).ok());
    Some(ImageHealthcheck {
        argv,
        interval,
        timeout: duration(check.timeout).unwrap_or(TIMEOUT),
        start_period: duration(check.start_period).unwrap_or_default(),
        start_interval: duration(check.start_interval),
        retries: retries.filter(|retries| *retries > 0).unwrap_or(RETRIES),
    })
}

/// A time in nanoseconds, of which 0 stands for none.
fn duration(nanoseconds: Option<i64>) -> Option<Duration> {
    let nanoseconds = u64::try_from(nanoseconds?).ok().filter(|time| *time > 0)?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The command of a test; `None` for `NONE`, and for tests of no known form, which the engine does not run.
fn argv(test: &[String], shell: Option<&[String]>) -> Option<Vec<String>> {
    let (form, words) = test.split_first()?;
    if words.is_empty() {
        return None;
    }
    let mut argv = match form.as_str() {
        "CMD" => Vec::new(),
        "CMD-SHELL" => match shell.filter(|shell| !shell.is_empty()) {
            Some(shell) => shell.to_vec(),
            None => ["/bin/sh", "-c"].map(str::to_owned).to_vec(),
        },
        _ => return None,
    };
    argv.extend_from_slice(words);
    Some(argv)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &serde_json::Value) -> Option<ImageHealthcheck> {
        of_image(&serde_json::from_value(json!({"Config": config})).expect("a description"))
    }

    #[test]
    fn healthcheck_of_image_has_every_form() {
        let argv = |test: serde_json::Value| {
            read(&json!({"Healthcheck": {"Test": test}})).map(|check| check.argv)
        };
        let words = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect());
        assert_eq!(argv(json!(["CMD", "a", "b c"])), words(&["a", "b c"]));
        assert_eq!(argv(json!(["CMD-SHELL", "a b"])), words(&["/bin/sh", "-c", "a b"]));
        for none in [json!(["NONE"]), json!([]), json!(["CMD"]), json!(["OTHER", "a"])] {
            assert_eq!(argv(none.clone()), None, "{none}");
        }
        assert_eq!(read(&json!({})), None);
        let shell =
            json!({"Healthcheck": {"Test": ["CMD-SHELL", "a"]}, "Shell": ["/bin/bash", "-ec"]});
        assert_eq!(read(&shell).map(|check| check.argv), words(&["/bin/bash", "-ec", "a"]));
    }

    #[test]
    fn healthcheck_of_image_has_times_of_engine_by_default() {
        let found = read(&json!({"Healthcheck": {"Test": ["CMD", "a"], "Interval": 0}}));
        let by_default = ImageHealthcheck {
            argv: vec!["a".to_owned()],
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            start_period: Duration::ZERO,
            start_interval: None,
            retries: 3,
        };
        assert_eq!(found, Some(by_default));
        let given = json!({
            "Test": ["CMD", "a"], "Interval": 1_500_000_000, "Timeout": 2_000_000_000,
            "StartPeriod": 3_000_000_000_u64, "StartInterval": 500_000_000, "Retries": 7,
        });
        let given = read(&json!({"Healthcheck": given})).expect("a healthcheck");
        let times = [given.interval, given.timeout, given.start_period];
        assert_eq!(times.map(|time| time.as_millis()), [1500, 2000, 3000]);
        assert_eq!((given.start_interval, given.retries), (Some(Duration::from_millis(500)), 7));
    }
}
