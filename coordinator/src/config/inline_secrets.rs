//! Secrets typed on the command line. A job is written into the run directory and sent to workers,
//! so it must not contain such a value. The value becomes a variable of this run's process, and the
//! job refers to it as if it had been exported.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_base::secrets::{TrialVariables, is_secret_name};
use rollout_protocol::template::Template;

use super::diagnostics::{Diagnostics, ErrorKind};
use super::elements::variables::Variable;
use super::job_file::JobFile;

/// Moves the secrets that the command line gives by value out of a job.
pub(super) fn extract(
    job: &mut JobFile,
    file: &Path,
    problems: &mut Diagnostics,
) -> TrialVariables {
    let mut secrets = BTreeMap::new();
    let agents = job.agents.iter_mut().flat_map(|agent| agent.env.iter_mut());
    let scripts = job.verifier.env.iter_mut().chain(job.environment_changes.env.iter_mut());
    for (name, variable) in agents.chain(scripts) {
        let Some(value) = inline_secret(name, variable) else { continue };
        if secrets.get(name).is_some_and(|other| *other != value) {
            let found = format!("a second value of {name}");
            let expected = "one value of a secret: it is a variable of the whole run";
            problems.error(variable.location.error(file, ErrorKind::Conflict, found, expected));
        }
        variable.template = Template::new(format!("${{{name}}}"));
        secrets.insert(name.clone(), value);
    }
    TrialVariables::new(secrets)
}

/// The value of a secret that was typed literally.
fn inline_secret(name: &str, variable: &Variable) -> Option<String> {
    let template = &variable.template;
    let literal = template.check().is_ok() && template.variables().is_empty();
    let typed = variable.location.is_from_command_line() && literal && is_secret_name(name);
    // Cannot fail: the template has no variables.
    let value = typed.then(|| template.expand(|_| None).ok()).flatten();
    value.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{CliDataset, CliSetting, Job, JobOptions, job_document, job_from_settings};
    use super::*;

    /// The job of a command line.
    fn job(settings: Vec<CliSetting>, problems: &mut Diagnostics) -> Option<Job> {
        let path = CliDataset::Path("tasks".into());
        let mut all = vec![CliSetting::dataset("-p", path), CliSetting::agent("-a", "oracle")];
        all.extend(settings);
        let options = JobOptions { settings: all, ..JobOptions::for_command_line(&|_| false) };
        job_from_settings(&options, problems)
    }

    #[test]
    fn secret_from_command_line_is_absent_from_document() {
        let settings = vec![
            CliSetting::each_agent("--agent-env API_KEY", "API_KEY", "hid$$den"),
            CliSetting::each_agent("--agent-env MODEL", "MODEL", "large"),
            CliSetting::each_agent("--agent-env EMPTY_TOKEN", "EMPTY_TOKEN", ""),
            CliSetting::text("--verifier-env API_KEY", "verifier.env.API_KEY", "hid$$den"),
            CliSetting::yaml("--set verifier.env", "verifier.env.A_TOKEN", "12345"),
        ];
        let mut problems = Diagnostics::default();
        let job = job(settings, &mut problems);
        let (job, _) = problems.finish(job.expect("a job")).expect("no faults");
        let shown = format!("{} {job:?}", job_document(&job));
        assert!(!shown.contains("hid") && !shown.contains("12345"), "{shown}");
        let env = &job.agents[0].spec.env;
        let value = |name: &str| job.inline_secrets.value(&env[name]).expect("given");
        assert_eq!(env["API_KEY"].as_str(), "${API_KEY}");
        assert_eq!((value("API_KEY"), value("MODEL")), ("hid$den".into(), "large".into()));
        assert_eq!(env["EMPTY_TOKEN"].as_str(), "");
        let verifier = &job.settings.verifier.env;
        assert_eq!(job.inline_secrets.value(&verifier["A_TOKEN"]).as_deref(), Ok("12345"));
    }

    #[test]
    fn secret_with_two_values_is_refused() {
        let settings = vec![
            CliSetting::each_agent("--agent-env TOKEN", "TOKEN", "one"),
            CliSetting::text("--verifier-env TOKEN", "verifier.env.TOKEN", "another"),
        ];
        let mut problems = Diagnostics::default();
        let job = job(settings, &mut problems);
        let refused = format!("{:?}", problems.finish(job.expect("a job")).err());
        assert!(refused.contains("a second value of TOKEN"), "{refused}");
        assert!(!refused.contains("another"), "{refused}");
    }
}
