//! The settings document of a farm.

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::name;

/// Settings of a farm. They may change between sessions; the name may not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarmSettings {
    /// Name of the farm: part of the key of every sample.
    pub name: String,
    /// Bounds on what it holds.
    #[serde(default)]
    pub limits: FarmLimits,
    /// Bounds on the age of policy versions.
    #[serde(default, skip_serializing_if = "StalenessBounds::is_unbounded")]
    pub staleness: StalenessBounds,
    /// Names of the readers of completions, at least one. A group belongs to one of them, by default
    /// to the first.
    #[serde(default = "consumers")]
    pub consumers: Vec<String>,
}

fn consumers() -> Vec<String> {
    vec!["train".to_owned()]
}

/// Bounds on what a farm holds. A group that does not fit is refused, and can be sent again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FarmLimits {
    /// Groups that have not ended.
    pub open_groups: u32,
    /// Samples that have not ended, over all groups. No group may be larger.
    pub open_samples: u32,
    /// Samples without an acknowledgement: those that have not ended, and completions that their
    /// consumer has not acknowledged.
    pub unacknowledged: u32,
    /// Ended and acknowledged groups whose ids are remembered: a group that is sent again after that
    /// is a new one.
    pub remembered_groups: u32,
    /// Cancelled groups, whose ids are remembered for ever, and open ones, which may be cancelled. A
    /// farm that has as many admits no group, and takes no cancellation of an unknown one.
    pub cancelled_groups: u32,
    /// Bytes that the journal may grow before it is compacted, at least
    /// [`limits::MIN_FARM_JOURNAL_BYTES`].
    pub journal_bytes: u64,
}

impl Default for FarmLimits {
    fn default() -> Self {
        Self {
            open_groups: limits::FARM_OPEN_GROUPS,
            open_samples: limits::FARM_OPEN_SAMPLES,
            unacknowledged: limits::FARM_UNACKNOWLEDGED,
            remembered_groups: limits::FARM_REMEMBERED_GROUPS,
            cancelled_groups: limits::FARM_CANCELLED_GROUPS,
            journal_bytes: limits::FARM_JOURNAL_BYTES,
        }
    }
}

/// How many versions behind the newest one a group's policy version may be; unbounded when absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StalenessBounds {
    /// When a group is submitted: an older one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<u64>,
    /// While a sample waits for a worker: an older one is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// While a sample runs: an older one is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
}

impl StalenessBounds {
    /// Whether there is no bound.
    pub fn is_unbounded(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a farm cannot have these settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFarmSettings {
    /// The name cannot be a directory.
    #[error("cannot use `{name}` as the name of a farm: it {reason}")]
    Name {
        /// The name.
        name: String,
        /// The violated rule.
        reason: name::InvalidPathComponent,
    },
    /// No consumer, too many, two with one name, or a name that is none.
    #[error(
        "cannot use the consumers of the farm: name 1 to {} different ones, each with 1 to {} \
         bytes",
        limits::FARM_CONSUMERS,
        limits::NAME_BYTES
    )]
    Consumers,
    /// A limit under which no group fits.
    #[error("cannot use the limit `{limit}` of the farm: it must be at least 1")]
    Limit {
        /// The limit.
        limit: &'static str,
    },
    /// The journal would be compacted too often.
    #[error(
        "cannot use the limit `journal_bytes` of the farm: it must be at least {}",
        limits::MIN_FARM_JOURNAL_BYTES
    )]
    JournalBytes,
    /// A limit that a user of a server may not raise.
    #[error("cannot use the limit `{limit}` of the farm: a user of a server has at most {max}")]
    LargeLimit {
        /// The limit.
        limit: &'static str,
        /// Its default.
        max: u64,
    },
}

impl FarmSettings {
    /// Settings with all defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            limits: FarmLimits::default(),
            staleness: StalenessBounds::default(),
            consumers: consumers(),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self) -> Result<(), InvalidFarmSettings> {
        name::check(&self.name).map_err(|reason| InvalidFarmSettings::Name {
            name: limits::shorten(self.name.clone(), limits::NAME_BYTES),
            reason,
        })?;
        let mut names: Vec<&str> = self.consumers.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let are_named = names.iter().all(|name| (1..=limits::NAME_BYTES).contains(&name.len()));
        let count = self.consumers.len();
        if names.len() != count || !(1..=limits::FARM_CONSUMERS).contains(&count) || !are_named {
            return Err(InvalidFarmSettings::Consumers);
        }
        let FarmLimits { open_groups, open_samples, unacknowledged, cancelled_groups, .. } =
            self.limits;
        let limits = [
            ("open_groups", open_groups),
            ("cancelled_groups", cancelled_groups),
            ("open_samples", open_samples),
            ("unacknowledged", unacknowledged),
        ];
        match limits.into_iter().find(|(_, value)| *value == 0) {
            Some((limit, _)) => Err(InvalidFarmSettings::Limit { limit }),
            None if self.limits.journal_bytes < limits::MIN_FARM_JOURNAL_BYTES => {
                Err(InvalidFarmSettings::JournalBytes)
            }
            None => Ok(()),
        }
    }

    /// Checks that no limit is above its default, as for a user of a server: limits bound its memory and
    /// its disk.
    ///
    /// # Errors
    /// [`InvalidFarmSettings::LargeLimit`] with the first one.
    pub fn check_defaults(&self) -> Result<(), InvalidFarmSettings> {
        let named = |limits: FarmLimits| {
            [
                ("open_groups", u64::from(limits.open_groups)),
                ("open_samples", limits.open_samples.into()),
                ("unacknowledged", limits.unacknowledged.into()),
                ("remembered_groups", limits.remembered_groups.into()),
                ("cancelled_groups", limits.cancelled_groups.into()),
                ("journal_bytes", limits.journal_bytes),
            ]
        };
        let bounds = named(FarmLimits::default());
        let found = named(self.limits).into_iter().zip(bounds).find(|(own, most)| own.1 > most.1);
        match found {
            Some(((limit, _), (_, max))) => Err(InvalidFarmSettings::LargeLimit { limit, max }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_document_has_defaults_and_refuses_unknown_keys() {
        let settings: FarmSettings = serde_json::from_str(r#"{"name":"f"}"#).expect("settings");
        assert_eq!(settings, FarmSettings::new("f"));
        assert!(settings.check().is_ok());
        let limits: FarmSettings =
            serde_json::from_str(r#"{"name":"f","limits":{"open_groups":2}}"#).expect("settings");
        let expected = FarmLimits { open_groups: 2, ..FarmLimits::default() };
        assert_eq!(limits.limits, expected);
        assert!(serde_json::from_str::<FarmSettings>(r#"{"name":"f","n":1}"#).is_err());
    }

    #[test]
    fn settings_that_hold_nothing_are_refused() {
        let settings = FarmSettings::new("f");
        let limits = FarmLimits { open_samples: 0, ..settings.limits };
        let refused = FarmSettings { limits, ..settings.clone() }.check();
        assert_eq!(refused, Err(InvalidFarmSettings::Limit { limit: "open_samples" }));
        let limits =
            FarmLimits { journal_bytes: limits::MIN_FARM_JOURNAL_BYTES - 1, ..settings.limits };
        let refused = FarmSettings { limits, ..settings.clone() }.check();
        assert_eq!(refused, Err(InvalidFarmSettings::JournalBytes));
        for consumers in [&[][..], &["a", "a"], &[""]] {
            let consumers = consumers.iter().map(|name| (*name).to_owned()).collect();
            let refused = FarmSettings { consumers, ..settings.clone() }.check();
            assert_eq!(refused, Err(InvalidFarmSettings::Consumers));
        }
        let raised = |change: fn(&mut FarmLimits)| {
            let mut settings = settings.clone();
            change(&mut settings.limits);
            (settings.check().is_ok(), settings.check_defaults())
        };
        assert_eq!(raised(|_| {}), (true, Ok(())));
        let (limit, max) = ("journal_bytes", limits::FARM_JOURNAL_BYTES);
        let refused = Err(InvalidFarmSettings::LargeLimit { limit, max });
        assert_eq!(raised(|limits| limits.journal_bytes += 1), (true, refused));
        let (limit, max) = ("remembered_groups", limits::FARM_REMEMBERED_GROUPS.into());
        let refused = Err(InvalidFarmSettings::LargeLimit { limit, max });
        assert_eq!(raised(|limits| limits.remembered_groups += 1), (true, refused));
        let refused = FarmSettings::new("a/b").check().expect_err("no name").to_string();
        let expected = "cannot use `a/b` as the name of a farm: it contains a path separator";
        assert_eq!(refused, expected);
    }
}
