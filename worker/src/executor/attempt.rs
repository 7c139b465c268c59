//! Attempts at one execution, for every kind of work. On every path an environment that is there is
//! collected and removed, a panic is an error like another, and the first cause of failure stays the
//! first.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::environment::ProviderKind;

use super::context::{ExecutionContext, TrialServices};
use super::environment::{ManagedEnvironment, Removed};
use super::finished::Finished;
use super::park::{Park, Waited};
use super::recipe::{Halt, Recipe};
use super::stop::killed;
use crate::environment::Provider;

/// Makes attempts at an execution until one has an answer.
///
/// One that met a service that gave no answer waits for it, and the execution begins again.
pub(crate) async fn execute<R: Recipe>(
    ctx: &ExecutionContext,
    services: &TrialServices,
    provider: ProviderKind,
    recipe: impl Fn() -> R + Sync,
) -> Finished<R::Record> {
    let provider = services.provider(provider, ctx.labels.run).ok();
    let engine = provider.as_deref().and_then(Provider::dependency);
    let mut park = Park::new(ctx, &services.files, engine);
    // Calls that hang are parked, too: they have no answer yet.
    let tell = |down: bool| ctx.phases.parked(down.then_some(Dependency::ContainerEngine));
    loop {
        let attempt = Box::pin(attempt(&recipe, &mut park));
        let answer = match engine {
            None => attempt.await,
            Some(engine) => tokio::select! {
                biased;
                answer = attempt => answer,
                never = engine.watch(tell) => match never {},
            },
        };
        if let Some(answer) = answer {
            ctx.phases.parked(None);
            return answer;
        }
        if let Some(provider) = &provider {
            provider.remove_deferred().await;
        }
    }
}

/// The end of a part of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It ran to its end, or to an error.
    Ran,
    /// A stop ended it between two phases.
    Drained,
    /// A stop ended it at once.
    Killed,
}

/// Makes one attempt; `None` when the execution has to begin again.
async fn attempt<R: Recipe>(
    recipe: &(impl Fn() -> R + Sync),
    park: &mut Park<'_>,
) -> Option<Finished<R::Record>> {
    let mut run = recipe();
    if park.begin().await == Waited::Stopped {
        return Some(run.finished(Some(Phase::Queued)));
    }
    let mut ended = phases(&mut run).await;
    let phase = run.attempt().timing.phase();
    if ended == Ended::Ran {
        match silence(&mut run, park).await {
            Silence::None => {}
            Silence::Over => return None,
            // An engine that is away has nothing to collect from.
            Silence::Stopped => ended = if park.is_down() { Ended::Killed } else { Ended::Drained },
        }
    }
    if ended != Ended::Killed && run.attempt().environment.up().is_some() {
        park.steady().await;
        let had_failed = run.attempt().first.is_some();
        if collection(&mut run).await == Ended::Killed {
            ended = Ended::Killed;
        } else if ended == Ended::Ran && !had_failed {
            // Outputs that could not be read.
            match silence(&mut run, park).await {
                Silence::None => {}
                Silence::Over => return None,
                Silence::Stopped => ended = Ended::Drained,
            }
        }
    }
    if ended == Ended::Ran {
        run.settle_errors().await;
    }
    teardown(&mut run, ended != Ended::Ran, park).await;
    Some(run.finished((ended != Ended::Ran).then_some(phase)))
}

/// Runs the phases before the collection.
async fn phases<R: Recipe>(run: &mut R) -> Ended {
    let stop = run.attempt().stop.clone();
    let ended = tokio::select! {
        biased;
        () = killed(stop) => return Ended::Killed,
        ended = AssertUnwindSafe(run.phases()).catch_unwind() => ended,
    };
    let ended = match ended {
        Ok(Ok(()) | Err(Halt::Complete)) => Ended::Ran,
        Ok(Err(Halt::Drained)) => Ended::Drained,
        Ok(Err(Halt::Failed(error))) => {
            let error = run.in_phase(error);
            run.attempt().fail(error);
            Ended::Ran
        }
        Err(panic) => {
            run.attempt().panicked(panic.as_ref());
            Ended::Ran
        }
    };
    run.attempt().timing.leave();
    ended
}

async fn collection<R: Recipe>(run: &mut R) -> Ended {
    run.attempt().enter(Phase::Collection);
    let stop = run.attempt().stop.clone();
    let collected = tokio::select! {
        biased;
        () = killed(stop) => return Ended::Killed,
        collected = AssertUnwindSafe(run.collect()).catch_unwind() => collected,
    };
    if let Err(panic) = collected {
        run.attempt().panicked(panic.as_ref());
    }
    Ended::Ran
}

/// The end of an attempt that may have failed because a service gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// It failed for another reason, or the service was away for too long: the attempt counts.
    None,
    /// The service answers again, and nothing of the attempt is left.
    Over,
    /// The execution was stopped meanwhile.
    Stopped,
}

/// Waits for the service by whose silence the attempt failed, if it did.
async fn silence<R: Recipe>(run: &mut R, park: &mut Park<'_>) -> Silence {
    let Some(error) = run.attempt().first.clone() else { return Silence::None };
    let had_environment = run.had_environment();
    let Some(on) = park.cause(&error, had_environment).await else { return Silence::None };
    let has_environment = !run.attempt().environment.is_empty();
    match park.wait(on, has_environment).await {
        Waited::Back => {
            undo(run).await;
            Silence::Over
        }
        Waited::TooLong => {
            run.attempt().first = Some(park.given_up(on, error));
            Silence::None
        }
        Waited::Stopped => {
            let attempt = run.attempt();
            attempt.later.extend(attempt.first.take());
            Silence::Stopped
        }
    }
}

/// Leaves nothing of the attempt.
async fn undo<R: Recipe>(run: &mut R) {
    let mut removed = vec![run.attempt().environment.remove().await];
    if let Some(second) = run.second_environment() {
        removed.push(second.remove().await);
    }
    run.release().await;
    let attempt = run.attempt();
    for Removed { not_created, failure } in removed {
        if let Some(failure) = failure {
            tracing::warn!("an environment is left for later: {}", failure.chain());
        }
        if let Some(why) = not_created {
            let error = why.into_error(&attempt.redactor);
            tracing::debug!("an environment that never came: {error}");
        }
    }
    // Files that cannot be removed are written over, or in the way with an error of their own.
    let _left = tokio::fs::remove_dir_all(&attempt.scratch).await;
}

/// Keeps or removes the environments, also one that is still being created. Work that was stopped
/// runs again: its environments are never kept.
async fn teardown<R: Recipe>(run: &mut R, stopped: bool, park: &mut Park<'_>) {
    if !run.attempt().environment.is_empty() || run.second_environment().is_some() {
        run.attempt().enter(Phase::Teardown);
        let keep = !stopped && run.keeps_environments();
        let mut removed = vec![remove(&mut run.attempt().environment, keep, park).await];
        if let Some(second) = run.second_environment() {
            removed.push(remove(second, keep, park).await);
        }
        for removed in removed {
            run.attempt().removed(removed, stopped);
        }
        run.attempt().timing.leave();
    }
    run.release().await;
}

/// Keeps or removes one environment, once more after an outage of its engine.
async fn remove(environment: &mut ManagedEnvironment, keep: bool, park: &mut Park<'_>) -> Removed {
    park.steady().await;
    let removed = environment.tear_down(keep).await;
    if removed.failure.is_none() || !park.engine_was_away().await {
        return removed;
    }
    park.steady().await;
    let again = environment.tear_down(keep).await;
    Removed { not_created: removed.not_created.or(again.not_created), ..again }
}
