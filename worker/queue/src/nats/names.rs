//! Names of streams, buckets, consumers and subjects.

use std::fmt;
use std::str::FromStr;

use rollout_protocol::id::{ItemId, RunId, TryId, WorkerId};
use rollout_protocol::wire::offer::SizeClass;
use serde_json::{Value, json};

/// A namespace or a pool: 1 to 64 characters of `[a-z0-9-]`, one token of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NatsName(String);

/// A text that is not a valid [`NatsName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid namespace or pool: expected 1 to 64 characters of [a-z0-9-]")]
pub struct InvalidNatsName {
    /// The text, shortened to 80 characters.
    pub text: String,
}

impl NatsName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NatsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NatsName {
    type Err = InvalidNatsName;
    fn from_str(text: &str) -> Result<Self, InvalidNatsName> {
        let good = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidNatsName { text: text.chars().take(80).collect() })
        }
    }
}

/// The header with the sequence of a requested message.
pub(super) const SEQUENCE_HEADER: &str = "Nats-Sequence";

/// Replaces the pool in the subject of a report that named none. No pool has this name.
pub(super) const NO_POOL: &str = "_";

/// Major version of the wire protocol: processes of different versions never see each other's
/// messages.
const WIRE_VERSION: &str = "v1";

/// The names of streams, buckets and subjects in one namespace.
#[derive(Debug, Clone)]
pub(super) struct NamespaceNames {
    /// Prefix of every subject.
    prefix: String,
    /// Stream of offers.
    pub(super) work: String,
    /// Stream of reports.
    pub(super) reports: String,
    /// Bucket of locks and states of runs.
    pub(super) runs: String,
    /// Bucket of heartbeats.
    pub(super) workers: String,
}

/// The parts of an offer's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OfferSubject<'a> {
    pub(super) pool: &'a str,
    pub(super) class: SizeClass,
    pub(super) run: RunId,
    pub(super) item: ItemId,
    pub(super) try_id: TryId,
}

impl NamespaceNames {
    pub(super) fn new(namespace: &NatsName) -> Self {
        let upper = namespace.as_str().to_ascii_uppercase();
        Self {
            prefix: format!("{namespace}.{WIRE_VERSION}"),
            work: format!("{upper}_WORK"),
            reports: format!("{upper}_REPORTS"),
            runs: format!("{upper}_RUNS"),
            workers: format!("{upper}_WORKERS"),
        }
    }

    pub(super) fn all_offers(&self) -> String {
        format!("{}.work.>", self.prefix)
    }

    /// The subjects of reports: with a pool, and without one from workers of an earlier version.
    pub(super) fn report_subjects(&self) -> [String; 2] {
        [format!("{}.report.*", self.prefix), format!("{}.report.*.*", self.prefix)]
    }

    pub(super) fn class_offers(&self, pool: &NatsName, class: SizeClass) -> String {
        format!("{}.work.{pool}.{class}.>", self.prefix)
    }

    /// The offers of a run in every pool.
    pub(super) fn run_offers(&self, run: RunId) -> String {
        format!("{}.work.*.*.{run}.>", self.prefix)
    }

    pub(super) fn offer(&self, offer: OfferSubject<'_>) -> String {
        let OfferSubject { pool, class, run, item, try_id } = offer;
        format!("{}.work.{pool}.{class}.{run}.{item}.{try_id}", self.prefix)
    }

    /// An offer of any pool and size class: a run may have changed its pool since.
    pub(super) fn offer_in_any_pool(&self, run: RunId, item: ItemId, try_id: TryId) -> String {
        format!("{}.work.*.*.{run}.{item}.{try_id}", self.prefix)
    }

    pub(super) fn parse_offer<'a>(&self, subject: &'a str) -> Option<OfferSubject<'a>> {
        let rest = subject.strip_prefix(&self.prefix)?.strip_prefix(".work.")?;
        let mut tokens = rest.split('.');
        let mut next = || tokens.next();
        let found = OfferSubject {
            pool: next()?,
            class: parse_class(next()?)?,
            run: next()?.parse().ok()?,
            item: next()?.parse().ok()?,
            try_id: next()?.parse().ok()?,
        };
        tokens.next().is_none().then_some(found)
    }

    pub(super) fn report(&self, pool: &str, run: RunId) -> String {
        format!("{}.report.{pool}.{run}", self.prefix)
    }

    /// The reports of a run from every pool.
    pub(super) fn run_reports(&self, run: RunId) -> String {
        format!("{}.report.*.{run}", self.prefix)
    }

    /// The run of a report.
    pub(super) fn run_of_report(&self, subject: &str) -> Option<RunId> {
        let rest = subject.strip_prefix(&self.prefix)?.strip_prefix(".report.")?;
        rest.split_once('.')?.1.parse().ok()
    }

    /// The pool that a report came from; [`NO_POOL`] from a worker of an earlier version.
    pub(super) fn parse_report<'a>(&self, subject: &'a str, run: RunId) -> Option<&'a str> {
        let rest = subject.strip_prefix(&self.prefix)?.strip_prefix(".report.")?;
        let (pool, of) = rest.split_once('.')?;
        (of.parse() == Ok(run)).then_some(pool)
    }

    /// The transform by which the server stores reports of workers of an earlier version, which
    /// name no pool.
    pub(super) fn reports_without_pool(&self) -> Value {
        let prefix = &self.prefix;
        json!({
            "src": format!("{prefix}.report.*"),
            "dest": format!("{prefix}.report.{NO_POOL}.{{{{wildcard(1)}}}}"),
        })
    }

    pub(super) fn claim(&self, pool: &str, run: RunId) -> String {
        format!("{}.claim.{pool}.{run}", self.prefix)
    }

    /// The claims of a run: from every pool, and without one from workers of an earlier version.
    pub(super) fn claims(&self, run: RunId) -> [String; 2] {
        [format!("{}.claim.*.{run}", self.prefix), format!("{}.claim.{run}", self.prefix)]
    }

    /// The pool that a claim came from; [`NO_POOL`] from a worker of an earlier version.
    pub(super) fn parse_claim<'a>(&self, subject: &'a str, run: RunId) -> Option<&'a str> {
        let rest = subject.strip_prefix(&self.prefix)?.strip_prefix(".claim.")?;
        let (pool, of) = rest.split_once('.').unwrap_or((NO_POOL, rest));
        (of.parse() == Ok(run)).then_some(pool)
    }

    pub(super) fn command(&self, run: RunId) -> String {
        format!("{}.command.{run}", self.prefix)
    }

    pub(super) fn control(&self, run: RunId) -> String {
        format!("{}.control.{run}", self.prefix)
    }

    pub(super) fn controls(&self) -> String {
        format!("{}.control.*", self.prefix)
    }

    pub(super) fn heartbeat(&self, worker: &WorkerId) -> String {
        key_subject(&self.workers, worker.as_str())
    }
}

/// The durable consumer of a class of a pool.
pub(super) fn consumer_name(pool: &NatsName, class: SizeClass) -> String {
    format!("{pool}-{class}")
}

/// The pool and the class whose consumer has this name.
pub(super) fn parse_consumer(consumer: &str) -> Option<(NatsName, SizeClass)> {
    let (pool, class) = consumer.rsplit_once('-')?;
    Some((pool.parse().ok()?, parse_class(class)?))
}

/// The class of this pool whose consumer has this name.
pub(super) fn class_of_consumer(pool: &NatsName, consumer: &str) -> Option<SizeClass> {
    parse_class(consumer.strip_prefix(pool.as_str())?.strip_prefix('-')?)
}

pub(super) fn parse_class(text: &str) -> Option<SizeClass> {
    if text == SizeClass::SOLO.to_string() {
        return Some(SizeClass::SOLO);
    }
    let class = SizeClass(text.strip_prefix('c')?.parse().ok()?);
    (class != SizeClass::SOLO && class.to_string() == text).then_some(class)
}

/// The stream of a bucket.
pub(super) fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// The subject of a key of a bucket.
pub(super) fn key_subject(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nats_subjects_round_trip_and_malformed_is_refused() {
        let names = NamespaceNames::new(&"my-lab".parse().expect("a name"));
        let offer = OfferSubject {
            pool: "gpu-c0",
            class: SizeClass::SOLO,
            run: RunId::from_bytes([1; 16]),
            item: ItemId::from_bytes([2; 16]),
            try_id: TryId { epoch: 3, n: 4 },
        };
        let subject = names.offer(offer);
        assert_eq!(names.parse_offer(&subject), Some(offer), "{subject}");
        for bad in [format!("{subject}.x"), subject[1..].to_owned(), subject.replace("solo", "c")] {
            assert_eq!(names.parse_offer(&bad), None, "{bad}");
        }
        assert_eq!(names.work, "MY-LAB_WORK");
        let (run, other) = (RunId::from_bytes([1; 16]), RunId::from_bytes([2; 16]));
        let subject = names.report("gpu-c0", run);
        assert_eq!(names.parse_report(&subject, run), Some("gpu-c0"));
        assert_eq!(names.parse_report(&subject, other), None);
        assert_eq!(names.run_of_report(&subject), Some(run));
        assert_eq!(names.run_of_report("my-lab.v1.report.x"), None);
        let claim = names.claim("gpu-c0", run);
        assert_eq!(names.parse_claim(&claim, run), Some("gpu-c0"));
        assert_eq!(names.parse_claim(&names.claims(run)[1], run), Some(NO_POOL));
        assert_eq!(names.parse_claim(&claim, other), None);
    }

    #[test]
    fn consumer_of_longer_pool_name_is_not_owned() {
        let pool = |name: &str| name.parse::<NatsName>().expect("a name");
        assert_eq!(
            class_of_consumer(&pool("a"), &consumer_name(&pool("a-c0"), SizeClass(1))),
            None
        );
        let own = consumer_name(&pool("a-c0"), SizeClass(1));
        assert_eq!(class_of_consumer(&pool("a-c0"), &own), Some(SizeClass(1)));
        assert_eq!(parse_consumer(&own), Some((pool("a-c0"), SizeClass(1))));
        for bad in ["a-", "a-c", "a-c01", "a-c255", "a-c+1", "a-x"] {
            assert_eq!(class_of_consumer(&pool("a"), bad), None, "{bad}");
            assert_eq!(parse_consumer(bad), None, "{bad}");
        }
    }
}
