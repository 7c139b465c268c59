//! `verifier` of a job file.

use rollout_protocol::spec::settings::VerifierSettings;

use super::super::fields::Field;
use super::timeouts::{TimeoutRules, read_optional};

/// The settings, and the time limits added to `rules`.
pub(crate) fn read(field: &Field<'_>, rules: &mut TimeoutRules) -> VerifierSettings {
    let Some(mut fields) = field.mapping() else { return VerifierSettings::default() };
    rules.verifier_override_sec = read_optional(&fields.take("override_timeout_sec"));
    rules.verifier_max_sec = read_optional(&fields.take("max_timeout_sec"));
    let mut switch = |key| fields.take(key).bool().unwrap_or(false);
    let settings = VerifierSettings {
        disable: switch("disable"),
        kill_agent_processes: switch("kill_agent_processes"),
        ..VerifierSettings::default()
    };
    fields.finish();
    settings
}
