//! Attempts of one execution, for all kinds of work. On every path an existing environment is
//! collected and removed, a panic is an error like any other, and the first cause of failure stays
//! first.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rollout_environment::Provider;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::environment::ProviderKind;

use super::context::{ExecutionContext, ExecutionServices};
use super::environment::{ManagedEnvironment, RemovalOutcome};
use super::finished::Finished;
use super::parking::{Parking, WaitOutcome};
use super::recipe::{PhaseInterrupt, WorkRecipe};
use super::stop::wait_for_kill;

/// Runs attempts of an execution until one has a result.
///
/// An attempt that failed because a service did not answer waits for the service; then the
/// execution starts over.
pub(crate) async fn execute<R: WorkRecipe>(
    ctx: &ExecutionContext,
    services: &ExecutionServices,
    provider: ProviderKind,
    recipe: impl Fn() -> R + Sync,
) -> Finished<R::Record> {
    let provider = services.provider(provider, ctx.labels.run).ok();
    let engine = provider.as_deref().and_then(Provider::dependency);
    let mut parking = Parking::new(ctx, &services.files, engine);
    // Calls that hang count as parked, too: they have no answer yet.
    let report_downtime =
        |down: bool| ctx.phases.parked(down.then_some(Dependency::ContainerEngine));
    loop {
        let attempt = Box::pin(run_attempt(&recipe, &mut parking));
        let answer = match engine {
            None => attempt.await,
            Some(engine) => tokio::select! {
                biased;
                answer = attempt => answer,
                never = engine.watch(report_downtime) => match never {},
            },
        };
        if let Some(answer) = answer {
            ctx.phases.parked(None);
            ctx.scratch_work.ended().await;
            return answer;
        }
        if let Some(provider) = &provider {
            provider.remove_deferred().await;
        }
    }
}

/// How a part of an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptEnd {
    /// It ran to completion or to an error.
    Ran,
    /// A stop ended it between two phases.
    Drained,
    /// A stop ended it at once.
    Killed,
}

/// Runs one attempt; `NotAnOutage` when the execution must start over.
async fn run_attempt<R: WorkRecipe>(
    recipe: &(impl Fn() -> R + Sync),
    parking: &mut Parking<'_>,
) -> Option<Finished<R::Record>> {
    let mut run = recipe();
    if parking.begin_attempt().await == WaitOutcome::Stopped {
        return Some(run.finished(Some(Phase::Queued)).await);
    }
    let mut ended = run_phases(&mut run).await;
    let phase = run.attempt().timing.phase();
    if ended == AttemptEnd::Ran {
        match wait_out_outage(&mut run, parking).await {
            OutageResult::NotAnOutage => {}
            OutageResult::Recovered => return None,
            // Nothing can be collected while the engine is down.
            OutageResult::Stopped => {
                ended = if parking.is_down() { AttemptEnd::Killed } else { AttemptEnd::Drained }
            }
        }
    }
    if ended != AttemptEnd::Killed && run.attempt().environment.running().is_some() {
        parking.wait_for_engine().await;
        let had_failed = run.attempt().first_error.is_some();
        if collect_outputs(&mut run).await == AttemptEnd::Killed {
            ended = AttemptEnd::Killed;
        } else if ended == AttemptEnd::Ran && !had_failed {
            // An error here comes from reading the outputs.
            match wait_out_outage(&mut run, parking).await {
                OutageResult::NotAnOutage => {}
                OutageResult::Recovered => return None,
                OutageResult::Stopped => ended = AttemptEnd::Drained,
            }
        }
    }
    if ended == AttemptEnd::Ran {
        run.settle_errors().await;
    }
    tear_down(&mut run, ended != AttemptEnd::Ran, parking).await;
    Some(run.finished((ended != AttemptEnd::Ran).then_some(phase)).await)
}

/// Runs the phases before the collection.
async fn run_phases<R: WorkRecipe>(run: &mut R) -> AttemptEnd {
    let stop = run.attempt().stop.clone();
    let ended = tokio::select! {
        biased;
        () = wait_for_kill(stop) => return AttemptEnd::Killed,
        ended = AssertUnwindSafe(run.phases()).catch_unwind() => ended,
    };
    let ended = match ended {
        Ok(Ok(()) | Err(PhaseInterrupt::Complete)) => AttemptEnd::Ran,
        Ok(Err(PhaseInterrupt::Drained)) => AttemptEnd::Drained,
        Ok(Err(PhaseInterrupt::Failed(error))) => {
            let error = run.with_phase(error);
            run.attempt().record_error(error);
            AttemptEnd::Ran
        }
        Err(panic) => {
            run.attempt().record_panic(panic.as_ref());
            AttemptEnd::Ran
        }
    };
    run.attempt().timing.leave();
    ended
}

async fn collect_outputs<R: WorkRecipe>(run: &mut R) -> AttemptEnd {
    run.attempt().enter(Phase::Collection);
    let stop = run.attempt().stop.clone();
    let collected = tokio::select! {
        biased;
        () = wait_for_kill(stop) => return AttemptEnd::Killed,
        collected = AssertUnwindSafe(run.collect()).catch_unwind() => collected,
    };
    if let Err(panic) = collected {
        run.attempt().record_panic(panic.as_ref());
    }
    AttemptEnd::Ran
}

/// Whether an attempt failed because of an outage, and how the wait for its end ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutageResult {
    /// The failure has another cause, or the service was down for too long: the attempt counts.
    NotAnOutage,
    /// The service answers again, and nothing of the attempt is left.
    Recovered,
    /// The execution was stopped during the wait.
    Stopped,
}

/// Waits for the service whose outage failed the attempt, if one did.
async fn wait_out_outage<R: WorkRecipe>(run: &mut R, parking: &mut Parking<'_>) -> OutageResult {
    let Some(error) = run.attempt().first_error.clone() else { return OutageResult::NotAnOutage };
    let had_environment = run.had_environment();
    let Some(dependency) = parking.unavailable_service(&error, had_environment).await else {
        return OutageResult::NotAnOutage;
    };
    let has_environment = !run.attempt().environment.is_empty();
    match parking.wait(dependency, has_environment).await {
        WaitOutcome::Available => {
            discard_attempt(run).await;
            OutageResult::Recovered
        }
        WaitOutcome::TooLong => {
            run.attempt().first_error = Some(parking.timeout_error(dependency, error));
            OutageResult::NotAnOutage
        }
        WaitOutcome::Stopped => {
            let attempt = run.attempt();
            attempt.secondary_errors.extend(attempt.first_error.take());
            OutageResult::Stopped
        }
    }
}

/// Removes everything that the attempt created.
async fn discard_attempt<R: WorkRecipe>(run: &mut R) {
    let mut removed = vec![run.attempt().environment.remove().await];
    if let Some(second) = run.second_environment() {
        removed.push(second.remove().await);
    }
    run.release().await;
    run.start_over();
    let attempt = run.attempt();
    for RemovalOutcome { not_created, failure } in removed {
        if let Some(failure) = failure {
            tracing::warn!("cannot remove an environment yet: {}", failure.chain());
        }
        if let Some(why) = not_created {
            let error = why.into_error(&attempt.redactor);
            tracing::debug!("an environment was not created: {error}");
        }
    }
    // A writer that is left would write into the files of the next attempt.
    attempt.scratch_work.ended().await;
    // Files that remain are overwritten, or the next attempt reports an error about them.
    let _left = tokio::fs::remove_dir_all(&attempt.scratch).await;
}

/// Keeps or removes the environments, including one that is still being created. Stopped work runs
/// again: its environments are never kept.
async fn tear_down<R: WorkRecipe>(run: &mut R, stopped: bool, parking: &mut Parking<'_>) {
    if !run.attempt().environment.is_empty() || run.second_environment().is_some() {
        run.attempt().enter(Phase::Teardown);
        let keep = !stopped && run.keeps_environments();
        let mut removed =
            vec![tear_down_environment(&mut run.attempt().environment, keep, parking).await];
        if let Some(second) = run.second_environment() {
            removed.push(tear_down_environment(second, keep, parking).await);
        }
        for removed in removed {
            run.attempt().record_removal(removed, stopped);
        }
        run.attempt().timing.leave();
    }
    run.release().await;
}

/// Keeps or removes one environment; tries once more after an outage of its engine.
async fn tear_down_environment(
    environment: &mut ManagedEnvironment,
    keep: bool,
    parking: &mut Parking<'_>,
) -> RemovalOutcome {
    parking.wait_for_engine().await;
    let removed = environment.tear_down(keep).await;
    if removed.failure.is_none() || !parking.was_engine_down().await {
        return removed;
    }
    parking.wait_for_engine().await;
    let again = environment.tear_down(keep).await;
    RemovalOutcome { not_created: removed.not_created.or(again.not_created), ..again }
}
