//! Tests of a job's changes of environments.

use super::*;
use crate::sources::datasets::specification;

#[test]
fn variables_of_job_reach_environments_of_agent_and_separate_verifier() {
    let project = DatasetProject::new(&format!(
        "environment: {{env: {{A: job, B: job}}}}\n{}",
        job("{path: ./set}")
    ));
    project.task("set/a");
    let text = "[environment.env]\nA = \"task\"\nC = \"task\"\n\
                [verifier.environment.env]\nA = \"own\"\nD = \"own\"\n";
    project.write("set/a/task.toml", text);
    let (job, datasets, _) = project.load(true).expect("no faults");
    let spec = specification(&job, "set".to_owned(), &datasets[0].tasks[0]);
    let own = spec.steps[0].verifier.environment.as_ref().expect("its own");
    for (environment, expected) in [
        (&spec.environment, [("A", "job"), ("B", "job"), ("C", "task")]),
        (&**own, [("A", "job"), ("B", "job"), ("D", "own")]),
    ] {
        let env: Vec<_> =
            environment.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, expected);
    }
}
