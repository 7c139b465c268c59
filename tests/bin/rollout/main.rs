//! The program under test: `rollout`, built for this package so that its tests know its path. Its
//! workers die when a trial of the task named in `ROLLOUT_TEST_DEADLY_TASK` runs its agent, and lose the
//! results of `ROLLOUT_TEST_LOST_PERCENT` of their trials. It can also be the S3 server of a test, in a
//! process or in the place of Garage in a container, and has the commands of
//! [`rollout_tests::hidden_commands`]: programs of their own would each link everything again.

mod farm_trainer;
mod queue_overhead;
mod sandbox_helper;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_gateway::run_calls::RunCallTable;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EvalRecord, IdeasRecord, TrialRecord};
use rollout_tests::{hidden_commands, power_disk, s3_process};
use rollout_worker::disk::DiskWatch;
use rollout_worker::executor::{Finished, PhaseSink};
use rollout_worker::service::Runner;
use rollout_worker::work::eval::EvalContext;
use rollout_worker::work::ideas::IdeasContext;
use rollout_worker::work::trial::TrialContext;
use rustix::process::{Signal, getpid, kill_process};

/// Variable with the task's name.
const DEADLY_TASK_VARIABLE: &str = "ROLLOUT_TEST_DEADLY_TASK";

/// Variable with the share of trials whose results are lost, in percent.
const LOST_PERCENT_VARIABLE: &str = "ROLLOUT_TEST_LOST_PERCENT";

fn main() -> ExitCode {
    if s3_process::serve_if_requested() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next().and_then(|word| word.into_string().ok());
    let ended = command.and_then(|command| run_hidden_command(&command, arguments.collect()));
    ended.unwrap_or_else(run_program)
}

/// Runs a command that `rollout` does not have; `None` if it is none of these.
fn run_hidden_command(command: &str, arguments: Vec<OsString>) -> Option<ExitCode> {
    Some(match command {
        hidden_commands::SANDBOX_WORKER => sandbox_helper::worker(&arguments),
        hidden_commands::STARVED_READER => sandbox_helper::starved(&arguments),
        hidden_commands::FARM_TRAINER => farm_trainer::run(&arguments),
        hidden_commands::QUEUE_OVERHEAD => queue_overhead::run(arguments),
        hidden_commands::POWER_DISK => power_disk::serve(&arguments),
        _ => return None,
    })
}

fn run_program() -> ExitCode {
    rollout_coordinator::cli::main_with(|runner| match Fault::wanted() {
        Some(fault) => Arc::new(FaultyRunner { fault, runner }),
        None => runner,
    })
}

/// A fault of trials.
#[derive(Debug)]
enum Fault {
    /// The process dies when the agent of this task is about to run.
    Death { task: String },
    /// This share of results is lost, as by a bug in the worker: an infrastructure error.
    Loss { share: f64 },
}

impl Fault {
    fn wanted() -> Option<Self> {
        let death = std::env::var(DEADLY_TASK_VARIABLE).map(|task| Self::Death { task });
        death.ok().or_else(|| {
            let percent = std::env::var(LOST_PERCENT_VARIABLE).ok()?;
            let percent: f64 = percent.parse().expect("a number");
            Some(Self::Loss { share: percent / 100.0 })
        })
    }
}

#[derive(Debug)]
struct FaultyRunner {
    fault: Fault,
    runner: Arc<dyn Runner>,
}

#[async_trait]
impl Runner for FaultyRunner {
    async fn run(&self, mut context: TrialContext) -> Finished<TrialRecord> {
        match &self.fault {
            Fault::Death { task } => {
                if *context.task.name == **task {
                    context.execution.phases = Arc::new(KillOnAgentPhase);
                }
                self.runner.run(context).await
            }
            Fault::Loss { share } => {
                let is_lost = rand::random::<f64>() < *share;
                let finished = self.runner.run(context).await;
                if is_lost {
                    // Without the hook, which would print a backtrace.
                    std::panic::resume_unwind(Box::new("the test loses this result"));
                }
                finished
            }
        }
    }

    fn disks(&self) -> Arc<DiskWatch> {
        self.runner.disks()
    }

    async fn eval(&self, context: EvalContext) -> Finished<EvalRecord> {
        self.runner.eval(context).await
    }

    async fn ideas(&self, context: IdeasContext) -> Finished<IdeasRecord> {
        self.runner.ideas(context).await
    }

    fn model_calls(&self) -> Arc<RunCallTable> {
        self.runner.model_calls()
    }
}

/// Kills the process once the environment exists and the agent is about to run.
#[derive(Debug)]
struct KillOnAgentPhase;

impl PhaseSink for KillOnAgentPhase {
    fn entered(&self, phase: Phase) {
        if phase == Phase::AgentExecution {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
    }
}
