use proptest::prelude::*;
use rollout_protocol::spec::eval::EvalStage;

use super::*;

const STAGES: [EvalStage; 4] =
    [EvalStage::Implement, EvalStage::Tests, EvalStage::Review, EvalStage::Sweep];
const SECOND: Duration = Duration::from_secs(1);

fn exec(n: usize) -> ExecId {
    ExecId::from_bytes([u8::try_from(n).expect("few"); 16])
}

fn item(n: usize) -> ItemId {
    ItemId::for_eval(
        "search",
        u32::try_from(n).expect("few"),
        (0, 0),
        1,
        &rollout_protocol::digest::Digest::sha256(b"spec"),
    )
}

fn always_open(_: &ItemId, _: &ExecId) -> HolderStatus {
    HolderStatus::Open
}

/// Actual state of a simulated execution.
#[derive(Debug, Default)]
enum SimulatedStatus {
    #[default]
    Nothing,
    /// Waits for the answer to its last request.
    Waits(Option<oneshot::Receiver<ClaimAnswer>>),
    Runs,
    /// Reported, or its worker died.
    Gone,
}

#[derive(Debug, Default)]
struct SimulatedExecution {
    /// How many times it started over.
    restarts: u32,
    /// Index of its stage.
    at: usize,
    does: SimulatedStatus,
    over: bool,
    /// The last mark of its former start.
    former: Option<StageProgress>,
}

impl SimulatedExecution {
    fn mark(&self) -> Option<StageProgress> {
        let step = match self.does {
            SimulatedStatus::Nothing if self.over => StageStep::Over,
            SimulatedStatus::Nothing => return self.former,
            SimulatedStatus::Gone => return None,
            SimulatedStatus::Waits(_) => StageStep::Waiting,
            SimulatedStatus::Runs => StageStep::Running,
        };
        Some(self.progress(step))
    }

    fn progress(&self, step: StageStep) -> StageProgress {
        StageProgress { restarts: self.restarts, stage: STAGES[self.at], step }
    }
}

/// Executions on workers, a coordinator, and the messages between them.
struct LimiterSimulation {
    now: Instant,
    table: PermitTable,
    caps: ConcurrencyLimits,
    executions: Vec<SimulatedExecution>,
    standing: Vec<HolderStatus>,
    /// Whether each worker died.
    dead: Vec<bool>,
    /// The last heartbeat of each worker.
    heartbeats: Vec<Vec<(usize, StageProgress)>>,
    /// Whether the coordinator saw a heartbeat of each worker in this session.
    said: Vec<bool>,
    heard: Vec<bool>,
    asks: Vec<(usize, StageProgress, oneshot::Sender<ClaimAnswer>)>,
    ends: Vec<(usize, StageProgress)>,
    started: Option<Instant>,
}

const EXECUTIONS: usize = 12;
const WORKERS: usize = 2;

impl LimiterSimulation {
    fn new(caps: ConcurrencyLimits) -> Self {
        let mut table = PermitTable::new(caps);
        let now = Instant::now();
        table.open(now, true);
        Self {
            now,
            table,
            caps,
            executions: (0..EXECUTIONS).map(|_| SimulatedExecution::default()).collect(),
            standing: vec![HolderStatus::Unknown; EXECUTIONS],
            dead: vec![false; WORKERS],
            heartbeats: vec![Vec::new(); WORKERS],
            said: vec![false; WORKERS],
            heard: vec![false; WORKERS],
            asks: Vec::new(),
            ends: Vec::new(),
            started: None,
        }
    }

    /// Requests a permit, for the first time or again. Earlier requests never get an answer.
    fn ask(&mut self, n: usize) {
        let execution = &mut self.executions[n];
        match execution.does {
            SimulatedStatus::Gone | SimulatedStatus::Runs => return,
            SimulatedStatus::Waits(_) => {}
            SimulatedStatus::Nothing if !execution.over => {}
            SimulatedStatus::Nothing if execution.at + 1 == STAGES.len() => return self.report(n),
            SimulatedStatus::Nothing => (execution.at, execution.over) = (execution.at + 1, false),
        }
        let waiting = execution.progress(StageStep::Waiting);
        if waiting.stage.kind().is_none() {
            execution.does = SimulatedStatus::Runs;
            return;
        }
        let (reply, question) = oneshot::channel();
        execution.does = SimulatedStatus::Waits(Some(question));
        self.asks.push((n, waiting, reply));
    }

    fn read_answer(&mut self, n: usize) {
        let SimulatedStatus::Waits(question) = &mut self.executions[n].does else { return };
        match question.as_mut().map(oneshot::Receiver::try_recv) {
            Some(Ok(ClaimAnswer::Run)) => self.executions[n].does = SimulatedStatus::Runs,
            Some(Err(oneshot::error::TryRecvError::Closed)) => *question = None,
            _ => {}
        }
    }

    fn finish(&mut self, n: usize) {
        let execution = &mut self.executions[n];
        if matches!(execution.does, SimulatedStatus::Runs) {
            (execution.does, execution.over) = (SimulatedStatus::Nothing, true);
            self.ends.push((n, execution.progress(StageStep::Over)));
        }
    }

    /// An outage ends the attempt of an execution and removes its environment.
    fn start_over(&mut self, n: usize) {
        let execution = &mut self.executions[n];
        if matches!(execution.does, SimulatedStatus::Gone) {
            return;
        }
        let (former, restarts) = (execution.mark(), execution.restarts + 1);
        *execution = SimulatedExecution { restarts, former, ..SimulatedExecution::default() };
    }

    fn report(&mut self, n: usize) {
        self.executions[n].does = SimulatedStatus::Gone;
        self.standing[n] = HolderStatus::Closed;
    }

    fn deliver(&mut self, which: usize) {
        let asks = self.asks.len();
        if asks > 0 {
            let (n, waiting, reply) = self.asks.swap_remove(which % asks);
            self.table.request(item(n), exec(n), waiting, reply);
        }
    }

    fn deliver_end(&mut self, which: usize, again: bool) {
        let ends = self.ends.len();
        if ends > 0 {
            let (n, over) = self.ends[which % ends];
            self.table.end(exec(n), over);
            if !again {
                self.ends.swap_remove(which % ends);
            }
        }
    }

    fn send_heartbeat(&mut self, worker: usize) {
        if self.dead[worker] {
            return;
        }
        let own = self.executions.iter().enumerate().filter(|(n, _)| n % WORKERS == worker);
        self.heartbeats[worker] = own.filter_map(|(n, one)| Some((n, one.mark()?))).collect();
        self.said[worker] = true;
    }

    fn read_heartbeats(&mut self) {
        let lines = self.heartbeats.iter().zip(&self.dead).flat_map(|(heartbeat, dead)| {
            heartbeat.iter().map(|(n, mark)| (item(*n), exec(*n), *mark, !*dead))
        });
        self.table.update_from_heartbeats(lines);
        self.heard = self.said.clone();
    }

    fn kill(&mut self, worker: usize) {
        self.dead[worker] = true;
        for (_, one) in
            self.executions.iter_mut().enumerate().filter(|(n, _)| n % WORKERS == worker)
        {
            one.does = SimulatedStatus::Gone;
        }
    }

    /// The coordinator dies with its commands, and another one starts.
    fn restart(&mut self) {
        self.table = PermitTable::new(self.caps);
        (self.said, self.heard) = (vec![false; WORKERS], vec![false; WORKERS]);
    }

    /// Opens the limiter once every living worker was heard.
    fn try_open(&mut self) {
        let all = self.heard.iter().zip(&self.dead).all(|(heard, dead)| *heard || *dead);
        if all && !self.table.is_open() {
            self.table.open(self.now, false);
        }
    }

    fn running(&self, kind: CommandKind) -> usize {
        let runs = |one: &&SimulatedExecution| {
            matches!(one.does, SimulatedStatus::Runs) && STAGES[one.at].kind() == Some(kind)
        };
        self.executions.iter().filter(runs).count()
    }

    fn granted(&self) -> Vec<(ExecId, StageProgress)> {
        let runs = |entry: &HolderEntry| {
            entry.mark.step == StageStep::Running
                && entry.mark.stage.kind() == Some(CommandKind::Llm)
        };
        let entries = self.table.executions.iter().filter(|(_, entry)| runs(entry));
        entries.map(|(exec, entry)| (*exec, entry.mark)).collect()
    }

    fn grant(&mut self) {
        let before = self.granted();
        let standing = self.standing.clone();
        let known = |_: &ItemId, exec: &ExecId| standing[usize::from(exec.as_bytes()[0])];
        self.table.grant(self.now, known);
        let starts = self.granted().iter().filter(|one| !before.contains(one)).count();
        let Some(interval) = self.caps.interval.filter(|_| starts > 0) else { return };
        assert_eq!(starts, 1, "more than one start at once");
        assert!(self.started.is_none_or(|last| self.now - last >= interval), "starts too early");
        self.started = Some(self.now);
    }

    fn step(&mut self, what: u8, which: usize) {
        let n = which % EXECUTIONS;
        self.now += Duration::from_millis(300);
        match what {
            0..=3 => self.ask(n),
            4..=7 => self.deliver(which),
            8..=11 => self.read_answer(n),
            12..=14 => self.finish(n),
            15 => self.deliver_end(which, false),
            16 => self.deliver_end(which, true),
            17 if which < 8 => self.report(n),
            17 => self.start_over(n),
            18..=19 => self.send_heartbeat(which % WORKERS),
            20..=21 => {
                self.read_heartbeats();
                self.try_open();
            }
            22..=23 if self.standing[n] == HolderStatus::Unknown => {
                self.standing[n] = HolderStatus::Open;
            }
            22..=27 => self.grant(),
            28 if which == 0 => self.kill(0),
            28..=29 => {
                self.restart();
                // Every worker is heard soon.
                (0..which % 3).for_each(|worker| self.send_heartbeat(worker % WORKERS));
            }
            _ => {}
        }
        for kind in [CommandKind::Llm, CommandKind::Sweep] {
            assert!(self.running(kind) <= self.caps.limit_for(kind), "too many of {kind:?}");
        }
    }

    /// Delivers everything in flight, and runs everything to its end.
    fn settle(&mut self) {
        for _ in 0..200 {
            (0..WORKERS).for_each(|worker| self.send_heartbeat(worker));
            self.read_heartbeats();
            self.try_open();
            for n in 0..EXECUTIONS {
                self.finish(n);
                self.ask(n);
                let dead = matches!(self.executions[n].does, SimulatedStatus::Gone);
                self.standing[n] = if dead { HolderStatus::Closed } else { HolderStatus::Open };
            }
            (0..self.asks.len()).for_each(|_| self.deliver(0));
            (0..self.ends.len()).for_each(|_| self.deliver_end(0, false));
            self.grant();
            (0..EXECUTIONS).for_each(|n| self.read_answer(n));
            self.now += SECOND;
        }
        assert!(
            self.executions.iter().all(|one| matches!(one.does, SimulatedStatus::Gone)),
            "not all ended"
        );
    }
}

fn schedules() -> impl Strategy<Value = Vec<(u8, usize)>> {
    proptest::collection::vec((0..30u8, 0..64usize), 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..Default::default() })]

    /// Requests, answers, losses, duplicates, delays, new starts and deaths, in any order.
    #[test]
    fn concurrency_limit_is_kept_and_no_request_starves(
        llm in proptest::option::of(1..3u32),
        sweeps in proptest::option::of(1..3u32),
        interval in proptest::option::of(Just(SECOND)),
        schedule in schedules(),
    ) {
        let mut world = LimiterSimulation::new(ConcurrencyLimits { llm, sweeps, interval });
        for (what, which) in schedule {
            world.step(what, which);
        }
        world.settle();
    }
}

fn progress(restarts: u32, stage: EvalStage, step: StageStep) -> StageProgress {
    StageProgress { restarts, stage, step }
}

fn ask(table: &mut PermitTable, n: usize, stage: EvalStage) -> oneshot::Receiver<ClaimAnswer> {
    ask_after(table, n, 0, stage)
}

fn ask_after(
    table: &mut PermitTable,
    n: usize,
    restarts: u32,
    stage: EvalStage,
) -> oneshot::Receiver<ClaimAnswer> {
    let (reply, answer) = oneshot::channel();
    table.request(item(n), exec(n), progress(restarts, stage, StageStep::Waiting), reply);
    answer
}

fn end(table: &mut PermitTable, n: usize, restarts: u32, stage: EvalStage) {
    table.end(exec(n), progress(restarts, stage, StageStep::Over));
}

#[test]
fn concurrency_request_repeated_keeps_place_and_one_permit() {
    let mut table =
        PermitTable::new(ConcurrencyLimits { sweeps: Some(1), ..ConcurrencyLimits::default() });
    let now = Instant::now();
    table.open(now, true);
    let mut first = ask(&mut table, 0, EvalStage::Sweep);
    let mut second = ask(&mut table, 1, EvalStage::Sweep);
    let mut third = ask(&mut table, 2, EvalStage::Sweep);
    table.grant(now, always_open);
    assert_eq!((first.try_recv().is_ok(), second.try_recv().is_ok()), (true, false));
    let mut second = ask(&mut table, 1, EvalStage::Sweep);
    // The answer was lost.
    assert!(ask(&mut table, 0, EvalStage::Sweep).try_recv().is_ok());
    end(&mut table, 0, 0, EvalStage::Sweep);
    table.grant(now, always_open);
    assert_eq!((second.try_recv().is_ok(), third.try_recv().is_ok()), (true, false));
    // Reported or lost.
    let closed = |_: &ItemId, one: &ExecId| match *one == exec(1) {
        true => HolderStatus::Closed,
        false => HolderStatus::Open,
    };
    table.grant(now, closed);
    assert!(third.try_recv().is_ok());
}

#[test]
fn concurrency_permit_in_heartbeat_counts_unknown_gets_none() {
    let mut table =
        PermitTable::new(ConcurrencyLimits { sweeps: Some(1), ..ConcurrencyLimits::default() });
    let now = Instant::now();
    let mut asks = ask(&mut table, 0, EvalStage::Sweep);
    let running = progress(0, EvalStage::Sweep, StageStep::Running);
    table.update_from_heartbeats([(item(1), exec(1), running, true)].into_iter());
    table.grant(now, always_open);
    assert!(asks.try_recv().is_err(), "not open");
    table.open(now, false);
    table.grant(now, always_open);
    assert!(asks.try_recv().is_err(), "another has it");
    end(&mut table, 1, 0, EvalStage::Sweep);
    table.grant(now, |_, _| HolderStatus::Unknown);
    assert!(asks.try_recv().is_err(), "its holders are not known");
    table.grant(now, always_open);
    assert!(asks.try_recv().is_ok());
}

#[test]
fn concurrency_request_after_new_start_gives_former_permit_up_and_waits_anew() {
    let mut table = PermitTable::new(ConcurrencyLimits {
        llm: Some(1),
        sweeps: Some(1),
        ..ConcurrencyLimits::default()
    });
    let now = Instant::now();
    table.open(now, true);
    let mut sweep = ask(&mut table, 0, EvalStage::Sweep);
    let mut other = ask(&mut table, 1, EvalStage::Sweep);
    table.grant(now, always_open);
    assert!(sweep.try_recv().is_ok() && other.try_recv().is_err());
    let mut implement = ask_after(&mut table, 0, 1, EvalStage::Implement);
    table.grant(now, always_open);
    assert!(implement.try_recv().is_ok() && other.try_recv().is_ok());
    // Messages of the former start change nothing, however late they arrive.
    assert!(ask(&mut table, 0, EvalStage::Sweep).try_recv().is_err());
    end(&mut table, 0, 0, EvalStage::Sweep);
    let mut third = ask(&mut table, 2, EvalStage::Implement);
    table.grant(now, always_open);
    assert!(third.try_recv().is_err(), "the execution that started over has the permit");
    let mut sweep = ask_after(&mut table, 0, 1, EvalStage::Sweep);
    table.grant(now, always_open);
    assert!(sweep.try_recv().is_err() && third.try_recv().is_ok());
    end(&mut table, 1, 0, EvalStage::Sweep);
    table.grant(now, always_open);
    assert!(sweep.try_recv().is_ok());
}

#[test]
fn concurrency_request_of_same_stage_after_new_start_takes_its_turn() {
    let mut table =
        PermitTable::new(ConcurrencyLimits { llm: Some(1), ..ConcurrencyLimits::default() });
    let now = Instant::now();
    table.open(now, true);
    let mut first = ask(&mut table, 0, EvalStage::Ideas);
    let mut second = ask(&mut table, 1, EvalStage::Ideas);
    table.grant(now, always_open);
    assert!(first.try_recv().is_ok() && second.try_recv().is_err());
    let mut again = ask_after(&mut table, 0, 1, EvalStage::Ideas);
    assert!(again.try_recv().is_err(), "not taken for a lost answer");
    table.grant(now, always_open);
    assert!(second.try_recv().is_ok() && again.try_recv().is_err());
    end(&mut table, 1, 0, EvalStage::Ideas);
    table.grant(now, always_open);
    assert!(again.try_recv().is_ok());
}

#[test]
fn concurrency_permit_returns_when_heartbeat_shows_new_start() {
    let mut table =
        PermitTable::new(ConcurrencyLimits { sweeps: Some(1), ..ConcurrencyLimits::default() });
    let now = Instant::now();
    table.open(now, true);
    let mut first = ask(&mut table, 0, EvalStage::Sweep);
    let mut second = ask(&mut table, 1, EvalStage::Sweep);
    table.grant(now, always_open);
    assert!(first.try_recv().is_ok() && second.try_recv().is_err());
    // Its first stage needs no permit.
    let implement = progress(1, EvalStage::Implement, StageStep::Running);
    table.update_from_heartbeats([(item(0), exec(0), implement, true)].into_iter());
    table.grant(now, always_open);
    assert!(second.try_recv().is_ok());
}

#[test]
fn rate_limit_spaces_starts_also_after_restart() {
    let mut table = PermitTable::new(ConcurrencyLimits {
        interval: Some(SECOND),
        ..ConcurrencyLimits::default()
    });
    let now = Instant::now();
    table.open(now, false);
    assert_eq!(table.next_due(now), None, "no request waits");
    let mut review = ask(&mut table, 0, EvalStage::Review);
    let mut second = ask(&mut table, 2, EvalStage::Review);
    table.grant(now, always_open);
    assert!(review.try_recv().is_err());
    assert_eq!(table.next_due(now), Some(now + SECOND));
    table.grant(now + SECOND, always_open);
    assert!(review.try_recv().is_ok());
    let mut sweep = ask(&mut table, 1, EvalStage::Sweep);
    table.grant(now + SECOND, always_open);
    assert!(sweep.try_recv().is_ok() && second.try_recv().is_err());
    table.grant(now + 2 * SECOND, always_open);
    assert!(second.try_recv().is_ok());
}
