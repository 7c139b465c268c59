//! Records of built images. Each is a config map that also has the claim of the worker that builds.
//!
//! A change names the version that it replaces, so of several workers one gets the claim, and a
//! worker that has lost its claim cannot write. A claim is renewed while its worker lives. Another
//! worker takes it when the record has not changed for some time by its own clock: the clocks of
//! hosts are not compared.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use rollout_environment::Failure;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::failure::has_code;
use super::labels::{MANAGED_BY, MANAGER};
use super::rights::Right;

/// Digest of the context.
const CONTEXT: &str = "context";

/// Name of the image, once it is built, and the last runs that built it, the latest one first.
const REFERENCE: &str = "reference";
const RUNS: &str = "runs";

/// Limit of runs in a record: more than force builds of one task at the same time.
const MAX_RUNS: usize = 32;

/// Claim: identity of the build, name of its pod, and a number that changes at each renewal.
const BUILD: &str = "build";
const POD: &str = "pod";
const RENEWAL: &str = "renewal";

/// The record of an image at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageRecord {
    data: BTreeMap<String, String>,
    version: String,
}

/// The record of one context.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordKey<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) digest: &'a Digest,
}

/// The right to build an image, until another worker takes it.
#[derive(Debug)]
pub(super) struct BuildClaim {
    /// Identifies the build.
    build: String,
    version: String,
    renewals: u64,
    /// The pod of the build.
    pub(super) pod: String,
    /// The pod of the build whose claim was taken.
    pub(super) replaced_pod: Option<String>,
    /// The record that was found.
    found: Option<ImageRecord>,
}

/// A claim of another worker, as this one has seen it.
#[derive(Debug, Default)]
pub(super) struct ObservedClaim(Option<(String, Instant)>);

impl ObservedClaim {
    /// Whether the record has not changed for `limit`.
    pub(super) fn is_lapsed(&mut self, record: &ImageRecord, limit: Duration) -> bool {
        match &self.0 {
            Some((version, since)) if *version == record.version => since.elapsed() >= limit,
            _ => {
                self.0 = Some((record.version.clone(), Instant::now()));
                false
            }
        }
    }
}

impl ImageRecord {
    fn of(map: ConfigMap) -> Self {
        let version = map.metadata.resource_version.unwrap_or_default();
        Self { data: map.data.unwrap_or_default(), version }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.data.get(key).map(String::as_str)
    }

    /// Whether the image is built and has this name. With `run`, only if that run is among the last
    /// ones that built it: runs that force builds of one image would otherwise replace it in turns.
    pub(super) fn names(&self, reference: &str, run: Option<RunId>) -> bool {
        let by_run = run.is_none_or(|run| {
            let run = run.to_string();
            self.runs(reference).any(|found| found == run)
        });
        self.text(REFERENCE) == Some(reference) && by_run
    }

    /// The last runs that built the image of this name.
    fn runs(&self, reference: &str) -> impl Iterator<Item = &str> {
        let runs = self.text(RUNS).filter(|_| self.text(REFERENCE) == Some(reference));
        runs.unwrap_or_default().split_whitespace()
    }

    /// The runs of the record after a build by `run`.
    fn runs_with(found: Option<&Self>, reference: &str, run: RunId) -> String {
        let run = run.to_string();
        let earlier = found.into_iter().flat_map(|found| found.runs(reference));
        let earlier = earlier.filter(|earlier| *earlier != run);
        let runs: Vec<_> = [run.as_str()].into_iter().chain(earlier).take(MAX_RUNS).collect();
        runs.join(" ")
    }

    /// Whether a worker builds the image.
    pub(super) fn is_claimed(&self) -> bool {
        self.data.contains_key(BUILD)
    }
}

impl RecordKey<'_> {
    fn name(&self) -> String {
        object_name("image", self.digest)
    }

    /// The record, if there is one.
    pub(super) async fn find(&self) -> Result<Option<ImageRecord>, Failure> {
        let records = self.cluster.api::<ConfigMap>(&self.cluster.namespace);
        let name = self.name();
        let what = format!("cannot read the record {name} of an image");
        let right = Right::to("get", &records);
        let found = self.cluster.call(right, &what, || records.get_opt(&name)).await?;
        Ok(found.map(ImageRecord::of))
    }

    /// Claims the build, in place of `found`. `None` if another worker was faster.
    pub(super) async fn claim(
        &self,
        found: Option<&ImageRecord>,
    ) -> Result<Option<BuildClaim>, Failure> {
        let build = format!("{:016x}", rand::random::<u64>());
        let pod = format!("{}-{build}", object_name("build", self.digest));
        let claim = [(BUILD, build.as_str()), (POD, pod.as_str()), (RENEWAL, "0")];
        let claimed = match found {
            Some(found) => self.change(&found.version, object(claim)).await?,
            None => self.create(claim).await?,
        };
        let replaced_pod = found.and_then(|found| found.text(POD)).map(str::to_owned);
        Ok(claimed.map(|record| BuildClaim {
            build,
            version: record.version,
            renewals: 0,
            pod,
            replaced_pod,
            found: found.cloned(),
        }))
    }

    async fn create(&self, claim: [(&str, &str); 3]) -> Result<Option<ImageRecord>, Failure> {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let mut data: BTreeMap<_, _> = claim.map(owned).into();
        data.insert(CONTEXT.to_owned(), self.digest.to_string());
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(self.name()),
                labels: Some([owned((MANAGED_BY, MANAGER))].into()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        };
        let what = format!("cannot create the record {} of an image", self.name());
        let records = self.cluster.api::<ConfigMap>(&self.cluster.namespace);
        let params = PostParams::default();
        let right = Right::to("create", &records);
        match self.cluster.answer(right, &what, || records.create(&params, &map)).await? {
            Ok(made) => Ok(Some(ImageRecord::of(made))),
            Err(error) if has_code(&error, 409) => Ok(None),
            Err(error) => Err(self.cluster.failure(&what, error)),
        }
    }

    /// Changes the record if it still has `version`.
    async fn change(
        &self,
        version: &str,
        data: Map<String, Value>,
    ) -> Result<Option<ImageRecord>, Failure> {
        let name = self.name();
        let what = format!("cannot change the record {name} of an image");
        let patch = json!({"metadata": {"resourceVersion": version}, "data": data});
        let records = self.cluster.api::<ConfigMap>(&self.cluster.namespace);
        let params = PatchParams::default();
        let patch = Patch::Merge(patch);
        let right = Right::to("patch", &records);
        let patching = || records.patch(&name, &params, &patch);
        match self.cluster.answer(right, &what, patching).await? {
            Ok(changed) => Ok(Some(ImageRecord::of(changed))),
            // Another worker changed it, or an operator deleted it.
            Err(error) if has_code(&error, 409) || has_code(&error, 404) => Ok(None),
            Err(error) => Err(self.cluster.failure(&what, error)),
        }
    }

    /// Changes the record while the claim is this one. Returns whether it was.
    async fn change_claimed(
        &self,
        claim: &mut BuildClaim,
        data: Map<String, Value>,
    ) -> Result<bool, Failure> {
        loop {
            if let Some(changed) = self.change(&claim.version, data.clone()).await? {
                claim.version = changed.version;
                return Ok(true);
            }
            // An earlier change may have arrived without its answer.
            match self.find().await? {
                Some(found) if found.text(BUILD) == Some(&claim.build) => {
                    claim.version = found.version;
                }
                _ => return Ok(false),
            }
        }
    }

    /// Renews a claim. Returns whether it is still this one.
    pub(super) async fn renew(&self, claim: &mut BuildClaim) -> Result<bool, Failure> {
        claim.renewals += 1;
        let renewal = claim.renewals.to_string();
        self.change_claimed(claim, object([(RENEWAL, &renewal)])).await
    }

    /// Records the built image and ends the claim. Returns whether the claim was still this one.
    pub(super) async fn finish(
        &self,
        claim: &mut BuildClaim,
        reference: &str,
        run: RunId,
    ) -> Result<bool, Failure> {
        let mut data = no_claim();
        let runs = ImageRecord::runs_with(claim.found.as_ref(), reference, run);
        data.extend(object([(REFERENCE, reference), (RUNS, &runs)]));
        self.change_claimed(claim, data).await
    }

    /// Ends a claim without an image.
    pub(super) async fn release(&self, claim: &mut BuildClaim) {
        // Without the change, the claim lapses.
        if let Err(failure) = self.change_claimed(claim, no_claim()).await {
            tracing::debug!("{}", failure.chain());
        }
    }
}

/// The name of the objects of a build.
fn object_name(kind: &str, digest: &Digest) -> String {
    let hex = digest.hex();
    format!("rollout-{kind}-{}", &hex[..32])
}

fn object<const N: usize>(fields: [(&str, &str); N]) -> Map<String, Value> {
    fields.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect()
}

/// The change that removes a claim.
fn no_claim() -> Map<String, Value> {
    [BUILD, POD, RENEWAL].map(|key| (key.to_owned(), Value::Null)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: &str, data: &[(&str, &str)]) -> ImageRecord {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ImageRecord { data: data.collect(), version: version.to_owned() }
    }

    #[test]
    fn names_of_build_objects_are_valid() {
        let name = object_name("build", &Digest::sha256(b"x"));
        let name = format!("{name}-{:016x}", u64::MAX);
        assert!(name.len() <= 63 && name.starts_with("rollout-build-"), "{name}");
    }

    #[test]
    fn record_of_other_registry_names_no_image() {
        let run = RunId::from_bytes([1; 16]);
        let built = record("1", &[(REFERENCE, "a/task:1"), (RUNS, &run.to_string())]);
        assert!(built.names("a/task:1", None) && built.names("a/task:1", Some(run)));
        assert!(!built.names("b/task:1", None));
        assert!(!built.names("a/task:1", Some(RunId::from_bytes([2; 16]))));
        assert!(!built.is_claimed() && record("1", &[(BUILD, "x")]).is_claimed());
    }

    #[test]
    fn record_keeps_the_last_runs_of_one_image() {
        let run = |number| RunId::from_bytes([number; 16]);
        let mut found = None;
        for number in 1..=40 {
            let runs = ImageRecord::runs_with(found.as_ref(), "a/task:1", run(number));
            found = Some(record("1", &[(REFERENCE, "a/task:1"), (RUNS, &runs)]));
        }
        let found = found.expect("a record");
        assert_eq!(found.runs("a/task:1").count(), MAX_RUNS);
        for (number, named) in [(40, true), (39, true), (9, true), (8, false)] {
            assert_eq!(found.names("a/task:1", Some(run(number))), named, "{number}");
        }
        let again = ImageRecord::runs_with(Some(&found), "a/task:1", run(39));
        assert_eq!(again.matches(&run(39).to_string()).count(), 1, "{again}");
        let other = ImageRecord::runs_with(Some(&found), "b/task:1", run(39));
        assert_eq!(other, run(39).to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn claim_lapses_when_its_record_stops_to_change() {
        let limit = Duration::from_secs(60);
        let mut observed = ObservedClaim::default();
        assert!(!observed.is_lapsed(&record("1", &[]), limit));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!observed.is_lapsed(&record("1", &[]), limit));
        assert!(!observed.is_lapsed(&record("2", &[]), limit));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!observed.is_lapsed(&record("2", &[]), limit));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(observed.is_lapsed(&record("2", &[]), limit));
    }
}
