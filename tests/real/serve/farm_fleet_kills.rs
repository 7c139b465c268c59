//! A trainer, its server, the workers and NATS, each killed again and again at random instants.
//!
//! `ROLLOUT_TEST_FARM_KILLS` is the size, `GROUPSxSAMPLESxSEEDS`; `ROLLOUT_TEST_FARM_SEED` the first
//! seed. The trainer is a program of the Python client.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rollout_protocol::exit::ExitCode;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::repository;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rollout_tests::{print_notice, python};
use serde_json::Value;

use crate::serve::farm_fleet::{self, FarmFleet};
use crate::serve::farms::{farm_project, farm_request};
use crate::serve::trainer_log::TrainerLog;

/// Groups, samples of each, and seeds, unless the environment asks for more.
const SIZE: [usize; 3] = [12, 4, 1];

/// Samples for each round of kills.
const SAMPLES_PER_ROUND: usize = 48;

/// Share of executions whose results are lost.
const LOST: f64 = 0.1;

/// Longest time of a trainer without a new completion, on a busy machine.
const STALL: Duration = Duration::from_secs(300);

/// Longest time between the instant that is due and the kill.
const MAX_DELAY_SEC: f64 = 1.0;

/// A process to kill.
#[derive(Debug, Clone, Copy)]
enum Target {
    Daemon,
    Worker(usize),
    Server,
    Trainer,
}

/// The targets of one round.
const ROUND: [Target; 5] =
    [Target::Daemon, Target::Worker(0), Target::Worker(1), Target::Server, Target::Trainer];

/// A farm under kills. The trainer ends first.
struct KilledFarm<'a> {
    trainer: RunningProgram,
    fleet: FarmFleet,
    interpreter: &'a Path,
    random: StdRng,
    size: [usize; 2],
}

fn size() -> [usize; 3] {
    let Ok(wanted) = std::env::var("ROLLOUT_TEST_FARM_KILLS") else { return SIZE };
    let numbers: Vec<usize> =
        wanted.split('x').map(|text| text.parse().expect("a number")).collect();
    numbers.try_into().expect("GROUPSxSAMPLESxSEEDS")
}

fn first_seed() -> u64 {
    let wanted = std::env::var("ROLLOUT_TEST_FARM_SEED").ok();
    wanted.map_or(1, |text| text.parse().expect("a seed"))
}

impl<'a> KilledFarm<'a> {
    fn start(interpreter: &'a Path, size: [usize; 2], seed: u64) -> Option<Self> {
        let project = farm_project();
        let request = farm_request(&project, "echo done >answer.txt");
        let mut document = request["document"].clone();
        document["n_concurrent_trials"] = Value::from(64);
        project.write_file("farm.json", &document.to_string());
        let percent = (LOST * 100.0).to_string();
        let fleet = FarmFleet::start(project, &[], ("ROLLOUT_TEST_LOST_PERCENT", &percent))?;
        let mut random = StdRng::seed_from_u64(seed);
        let trainer = train(&fleet, interpreter, size, &mut random);
        Some(Self { fleet, interpreter, trainer, random, size })
    }

    fn log(&self) -> PathBuf {
        log_of(&self.fleet)
    }

    /// Kills every target once for each round, at random instants of the first nine tenths of the
    /// training, and waits for its end. Returns the number of kills.
    fn run(&mut self) -> usize {
        let samples = self.size[0] * self.size[1];
        let rounds = samples.div_ceil(SAMPLES_PER_ROUND);
        let mut targets: Vec<_> = (0..rounds).flat_map(|_| ROUND).collect();
        targets.shuffle(&mut self.random);
        let last = samples * 9 / 10;
        let mut due: Vec<_> = targets.iter().map(|_| self.random.random_range(0..last)).collect();
        due.sort_unstable();
        for (&target, due) in targets.iter().zip(due) {
            self.wait_for_completions(due);
            let delay = self.random.random_range(0.0..MAX_DELAY_SEC);
            let _passed = wait::holds_within(Duration::from_secs_f64(delay), || false);
            self.kill(target);
        }
        self.wait_for_completions(samples);
        targets.len()
    }

    /// Waits until the trainer has read this many completions, as long as new ones come.
    fn wait_for_completions(&mut self, count: usize) {
        let mut read = self.read();
        while read < count {
            let former = read;
            let more = wait::holds_within(STALL, || {
                assert!(!self.trainer.has_ended() || self.read() >= count, "{}", self.report());
                read = self.read();
                read > former
            });
            assert!(more, "no completion after {former} in {STALL:?}: {}", self.report());
        }
    }

    /// The newest cursor that the trainer has read.
    fn read(&self) -> usize {
        let path = self.log().with_file_name("read.txt");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    fn kill(&mut self, target: Target) {
        match target {
            Target::Daemon => self.fleet.restart_daemon(),
            Target::Worker(number) => self.fleet.restart_worker(number),
            Target::Server => self.fleet.restart_server(),
            Target::Trainer => {
                farm_fleet::kill(&mut self.trainer);
                self.trainer = train(&self.fleet, self.interpreter, self.size, &mut self.random);
            }
        }
    }

    fn report(&self) -> String {
        let farms = self.fleet.daemon.client.send("GET", "/v1/farms", &[], b"");
        let farms = farms.map(|answer| answer.text());
        format!("{}\n{farms:?}\n{}", self.trainer.stderr(), self.fleet.daemon.process.stderr())
    }

    /// Waits for the end of the trainer and of the farm, and checks everything.
    fn assert_complete(self, seed: u64, kills: usize, began: Instant) {
        let [groups, n] = self.size;
        let path = self.log();
        let _ended = self.trainer.wait(STALL).expect_code(ExitCode::Success);
        let log = TrainerLog::read(&path);
        let farm = format!("/v1/farms/{}", log.assert_complete(groups, n));
        let mut shown = Value::Null;
        wait::until(LONG_DEADLINE, "the farm ends", || {
            shown = self.fleet.daemon.client.get(&farm).expect(200).json();
            shown["is_final"] == true
        });
        let total = |name: &str| shown["status"]["totals"][name].as_u64().unwrap_or_default();
        let samples = (groups * n) as u64;
        let expected = [groups as u64, groups as u64, samples, samples, samples, 0, 0];
        let names = [
            "groups",
            "complete_groups",
            "samples",
            "completed",
            "usable",
            "no_result",
            "cancelled",
        ];
        assert_eq!(names.map(total), expected, "{shown:#}");
        let generations: u64 = log
            .completions
            .values()
            .map(|one| one["generation"].as_u64().expect("a generation"))
            .sum();
        assert_eq!(generations, samples + total("refills"), "each refill is one more generation");
        let ratio = generations as f64 / (samples as f64 / (1.0 - LOST));
        print_notice(&format!(
            "seed {seed}: {groups} groups of {n}, {kills} kills in {:.0?}: {generations} samples \
             run, {ratio:.3} of n/(1-p); {} executions of the last generations; {} pages, {} \
             completions shown again, {} weight syncs, {} late results",
            began.elapsed(),
            log.executions(),
            log.pages,
            log.repeated,
            log.versions.len(),
            total("late"),
        ));
        assert!((0.8..1.5).contains(&ratio), "{ratio}");
        self.fleet.stop();
    }
}

/// Starts a trainer that continues what former ones began.
fn train(
    fleet: &FarmFleet,
    interpreter: &Path,
    [groups, n]: [usize; 2],
    random: &mut StdRng,
) -> RunningProgram {
    let project = &fleet.cluster.project;
    let script = repository().join("tests/real/serve/trainer.py").display().to_string();
    let mut command = project.command_of(interpreter, &[&script, &fleet.daemon.url()]);
    command.arg(project.path()).args([groups.to_string(), n.to_string()]);
    command.arg(random.random::<u32>().to_string());
    command.env("PYTHONPATH", repository().join("clients/python/src"));
    // Nothing is written beside the sources.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    project.start(command)
}

fn log_of(fleet: &FarmFleet) -> PathBuf {
    fleet.cluster.project.path().join("trainer.jsonl")
}

#[test]
fn kills_of_every_part_lose_and_repeat_no_completion() {
    let Some(interpreter) = python::with_client_tools() else { return };
    let [groups, n, seeds] = size();
    for seed in (first_seed()..).take(seeds) {
        print_notice(&format!("seed {seed}"));
        let began = Instant::now();
        let Some(mut farm) = KilledFarm::start(&interpreter, [groups, n], seed) else { return };
        let kills = farm.run();
        farm.assert_complete(seed, kills, began);
    }
}
