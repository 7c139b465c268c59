//! The limit on the trials of one run.

use super::failure::RunFailure;
use super::submit::CONFIG_CODE;
use crate::config::Job;

/// The failure of a job with more than `most` trials; `None` without one. `tasks` are those of its
/// datasets, which are known once they are fetched.
pub(super) fn excess(job: &Job, tasks: Option<usize>, most: Option<u64>) -> Option<RunFailure> {
    let (agents, attempts, most) = (job.agents.len(), job.n_attempts, most?);
    let of_tasks = tasks.map_or(1, |tasks| tasks as u64);
    let trials = (agents as u64).saturating_mul(of_tasks).saturating_mul(attempts.into());
    if trials <= most {
        return None;
    }
    let found = match tasks {
        Some(tasks) => {
            format!("{agents} agents x {tasks} tasks x {attempts} attempts are {trials} trials")
        }
        None => format!("{agents} agents x {attempts} attempts are {trials} trials of each task"),
    };
    Some(RunFailure {
        code: CONFIG_CODE,
        message: format!("cannot accept the job: {found}, and a run may have {most}"),
        details: Vec::new(),
        hints: vec![
            "use several runs, or ask the operator of the server for a higher `--max-trials`"
                .to_owned(),
        ],
        is_temporary: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Diagnostics, JobOptions, read_job};

    fn job(agents: usize, attempts: u32) -> Job {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("job.yaml");
        let agents: String = (0..agents).map(|n| format!("{{name: a{n}, execute: x}},")).collect();
        let text = format!("n_attempts: {attempts}\nagents: [{agents}]\ndatasets: [{{path: t}}]\n");
        std::fs::write(&file, text).expect("written");
        let options = JobOptions::for_command_line(&|_| true);
        read_job(&file, &options, &mut Diagnostics::default()).expect("a job")
    }

    #[test]
    fn job_with_more_trials_than_allowed_is_refused() {
        let excess = |agents, tasks, attempts, most| {
            excess(&job(agents, attempts), tasks, most).map(|failure| failure.message)
        };
        assert_eq!(excess(4, Some(5), 5, Some(100)), None);
        assert_eq!(excess(4, Some(5), 5, None), None);
        assert_eq!(excess(4, None, 25, Some(100)), None);
        let message = excess(4, Some(5), 6, Some(100)).expect("refused");
        assert!(message.contains("4 agents x 5 tasks x 6 attempts are 120 trials"), "{message}");
        let message = excess(4, None, 26, Some(100)).expect("refused");
        assert!(message.contains("are 104 trials of each task, and a run may have 100"));
    }
}
