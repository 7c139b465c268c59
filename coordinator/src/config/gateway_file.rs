//! Files of `rollout gateway`: the keys `gateway`, `prices` and `budget` of job files.

use std::path::Path;

use rollout_protocol::spec::budget::TryBudget;
use rollout_protocol::spec::gateway::GatewaySpec;

use super::diagnostics::{ConfigError, Diagnostics, ErrorKind};
use super::elements::{budget, gateway};
use super::host_path::HostAccess;
use super::job_file::{self, JOB_REFERENCE, JobKeys};
use super::read;
use super::reader::{ConfigReader, Fields, UnknownKeys};

/// A gateway that runs alone.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayFile {
    /// The model servers.
    pub gateway: GatewaySpec,
    /// Budget of all calls together.
    pub budget: Option<TryBudget>,
}

/// Reads and checks a file; `None` if there are errors, which are recorded. `is_set`: whether a
/// variable with a key is set.
pub fn read_gateway(
    file: &Path,
    is_set: &dyn Fn(&str) -> bool,
    problems: &mut Diagnostics,
) -> Option<GatewayFile> {
    let root = job_file::parse_document(file, &read::text(file, problems)?, problems)?;
    // Only the command line names such a file.
    let reader = ConfigReader::new(file, UnknownKeys::Errors)
        .with_host(HostAccess::Everything)
        .with_reference(&JOB_REFERENCE);
    let found = reader.root(&root).and_then(|mut fields| {
        let found = gateway_of(&mut fields, file, is_set, problems);
        fields.finish();
        found
    });
    problems.extend(reader.into_problems());
    found.filter(|_| !problems.has_errors())
}

fn gateway_of(
    fields: &mut Fields<'_>,
    file: &Path,
    is_set: &dyn Fn(&str) -> bool,
    problems: &mut Diagnostics,
) -> Option<GatewayFile> {
    let prices = job_file::prices(&fields.take(JobKeys::prices), file);
    let servers = fields.take(JobKeys::gateway);
    let budget_field = fields.take(JobKeys::budget);
    servers.required("the model servers");
    let mut config = gateway::read(&servers, &[])?;
    gateway::add_prices(&mut config.spec, &prices);
    let limits = budget::read(&budget_field);
    budget::check(&budget_field, &limits, Some(&config.spec), &[]);
    if !limits.run.run.is_unlimited() || !limits.run.agent.is_unlimited() {
        let expected = "`budget.try`, which limits all calls of a gateway that runs alone";
        budget_field.reject(ErrorKind::Conflict, "a budget of a run or an agent", expected);
    }
    for key in &config.keys {
        for (name, _) in key.template.variables().into_iter().filter(|(name, _)| !is_set(name)) {
            let found = format!("`{name}`, which is not set");
            problems.error(ConfigError {
                hint: Some(format!("export {name}")),
                ..key.location.error(
                    file,
                    ErrorKind::UnsetVariable,
                    found,
                    "a variable that is set",
                )
            });
        }
    }
    Some(GatewayFile { gateway: config.spec, budget: limits.each_try })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<GatewayFile>, Vec<String>) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("gateway.yaml");
        std::fs::write(&file, text).expect("written");
        let mut problems = Diagnostics::default();
        let found = read_gateway(&file, &|name| name == "SET", &mut problems);
        let errors = problems.into_parts().0.into_iter();
        (found, errors.map(|error| format!("{} {}", error.key, error.found)).collect())
    }

    #[test]
    fn gateway_file_has_servers_prices_and_a_budget() {
        let text = "gateway: {upstreams: [{name: openai, url: 'http://h/v1', key_env: SET}]}\n\
                    budget: {try: {cost: 2}}";
        let (found, errors) = read(text);
        assert_eq!(errors, Vec::<String>::new());
        let found = found.expect("a gateway");
        assert!(found.gateway.upstreams[0].prices_of(["gpt-4.1"]).is_some());
        assert_eq!(found.budget.and_then(|budget| budget.limits.cost), Some(2.0));
    }

    #[test]
    fn gateway_file_with_mistakes_is_refused_with_all_of_them() {
        let text = "gateway: {upstreams: [{url: 'http://h/v1', key_env: UNSET}]}\n\
                    budget: {try: {calls: 1}, run: {calls: 9}}\nagents: []";
        let (found, errors) = read(text);
        assert_eq!(found, None);
        for part in ["UNSET", "a run or an agent", "agents"] {
            assert!(errors.iter().any(|error| error.contains(part)), "{part}: {errors:?}");
        }
        assert!(!read("{}").1.is_empty(), "the servers are required");
    }
}
