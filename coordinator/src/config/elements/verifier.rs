//! `verifier` of a job file.

use std::collections::BTreeMap;

use rollout_protocol::spec::settings::VerifierSettings;
use rollout_protocol::spec::task::{AfterAgentError, ScriptRules, TestExit};

use super::super::reader::Field;
use super::environment::read_hosts;
use super::timeouts::{TimeoutRules, read_optional};
use super::variables::{self, Variable};

keys! {
    /// The keys of `verifier` in job files.
    pub(crate) table VerifierKeys {
        override_timeout_sec: Value("number"), "from the task",
            "Time limit of every test script, s; 0 means unset.";
        max_timeout_sec: Value("number"), "none",
            "Ceiling of the test scripts' time limits, s; 0 means unset.";
        disable: Value("true|false"), "false", "Run no test scripts: trials end unverified.";
        kill_agent_processes: Value("true|false"), "false",
            "Kill all processes that the agent left running, before verification.";
        reward_key: Value("text"), "reward, or the only one", "Key of the reward among several numbers.";
        test_exit_code: Value("by_format|must_be_zero|ignored"), "by_format",
            "Meaning of test scripts' exit code; by format: 0 required in Rollout, ignored in Harbor.";
        after_agent_error: Value("by_format|end_trial|verify"), "by_format",
            "Action after an agent fails or times out; by format: end in Rollout, verify in Harbor.";
        env: Value("table NAME = text"), "",
            "Variables of test scripts, which override the tasks'; `${NAME:-default}`.";
        extra_allowed_hosts: Value("list of hosts"), "none",
            "Hosts that test scripts may reach in tasks without network or with an allowlist.";
    }
}

/// Words of `test_exit_code`.
pub(crate) const TEST_EXIT_CODE_RULES: &[(&str, Option<TestExit>)] = &[
    ("by_format", None),
    ("must_be_zero", Some(TestExit::MustBeZero)),
    ("ignored", Some(TestExit::Ignored)),
];

/// Words of `after_agent_error`.
pub(crate) const AFTER_AGENT_ERROR_RULES: &[(&str, Option<AfterAgentError>)] = &[
    ("by_format", None),
    ("end_trial", Some(AfterAgentError::EndTrial)),
    ("verify", Some(AfterAgentError::Verify)),
];

/// Job overrides of the script rules of the tasks' formats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleOverrides {
    /// Meaning of the exit code of test scripts.
    pub test_exit: Option<TestExit>,
    /// Action after an agent fails or times out.
    pub after_agent_error: Option<AfterAgentError>,
}

impl RuleOverrides {
    /// The rules of a task with the overrides applied.
    pub fn apply(&self, format: ScriptRules) -> ScriptRules {
        ScriptRules {
            test_exit: self.test_exit.unwrap_or(format.test_exit),
            after_agent_error: self.after_agent_error.unwrap_or(format.after_agent_error),
        }
    }
}

/// `verifier` as written in the job file, without its time limits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VerifierConfig {
    /// The settings, without `env`.
    pub settings: VerifierSettings,
    /// `env`.
    pub env: BTreeMap<String, Variable>,
    /// `test_exit_code` and `after_agent_error`.
    pub rules: RuleOverrides,
    /// `extra_allowed_hosts`.
    pub hosts: Vec<String>,
}

/// Reads the settings, and adds the time limits to `timeouts`.
pub(crate) fn read(field: &Field<'_>, timeouts: &mut TimeoutRules) -> VerifierConfig {
    let Some(mut fields) = field.mapping() else { return VerifierConfig::default() };
    timeouts.verifier_override_sec =
        read_optional(&fields.take(VerifierKeys::override_timeout_sec));
    timeouts.verifier_max_sec = read_optional(&fields.take(VerifierKeys::max_timeout_sec));
    let mut switch = |key| fields.take(key).bool().unwrap_or(false);
    let settings = VerifierSettings {
        disable: switch(VerifierKeys::disable),
        kill_agent_processes: switch(VerifierKeys::kill_agent_processes),
        reward_key: fields.take(VerifierKeys::reward_key).non_empty_string(),
        env: BTreeMap::new(),
    };
    let rules = RuleOverrides {
        test_exit: fields
            .take(VerifierKeys::test_exit_code)
            .keyword(TEST_EXIT_CODE_RULES)
            .flatten(),
        after_agent_error: fields
            .take(VerifierKeys::after_agent_error)
            .keyword(AFTER_AGENT_ERROR_RULES)
            .flatten(),
    };
    let env = variables::read(&fields.take(VerifierKeys::env));
    let hosts = read_hosts(&fields.take(VerifierKeys::extra_allowed_hosts));
    fields.finish();
    VerifierConfig { settings, env, rules, hosts }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::task::TaskFormat;

    use super::super::super::diagnostics::ErrorKind;
    use super::super::testing::read_field;
    use super::*;

    fn verifier(text: &str) -> (VerifierConfig, Vec<(String, ErrorKind)>) {
        let (file, faults, _) = read_field(text, |f| read(f, &mut TimeoutRules::default()));
        (file, faults)
    }

    #[test]
    fn verifier_rules_default_to_format_unless_job_overrides() {
        let of = |text| verifier(text).0.rules.apply(ScriptRules::for_format(TaskFormat::Harbor));
        assert_eq!(of("{}"), ScriptRules::for_format(TaskFormat::Harbor));
        assert_eq!(of("{test_exit_code: by_format}"), ScriptRules::for_format(TaskFormat::Harbor));
        let strict = "{test_exit_code: must_be_zero, after_agent_error: end_trial}";
        assert_eq!(of(strict), ScriptRules::for_format(TaskFormat::Rollout));
    }

    #[test]
    fn verifier_config_errors_are_all_reported() {
        let text =
            "{test_exit_code: zero, after_agent_error: 1, reward_key: '', env: {OPEN: '${'}}";
        let faults: Vec<_> = verifier(text).1.into_iter().map(|(key, _)| key).collect();
        assert_eq!(
            faults,
            ["x.reward_key", "x.test_exit_code", "x.after_agent_error", "x.env.OPEN"]
        );
    }
}
