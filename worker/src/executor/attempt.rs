//! Attempts of one execution: one that met a service without an answer is made anew.

use std::pin::Pin;

use rollout_protocol::dependency::Dependency;

use super::park::{Park, Waiter};
use crate::environment::Provider;

/// An attempt under way.
type Attempting<'a, T> = Pin<Box<dyn Future<Output = Option<T>> + Send + 'a>>;

/// Makes attempts until one gives an outcome. An attempt gives none when it met a service that gave
/// no answer, waited for it, and the execution is to begin anew.
pub(crate) async fn attempts<'w, T, F>(
    who: Waiter<'w>,
    provider: Option<&'w dyn Provider>,
    attempt: F,
) -> T
where
    F: for<'p> Fn(&'p mut Park<'w>) -> Attempting<'p, T>,
{
    let engine = provider.and_then(Provider::dependency);
    let phases = who.phases;
    let mut park = Park::new(who, engine);
    // Calls that hang are parked, too: they have no answer yet.
    let tell = |down: bool| phases.parked(down.then_some(Dependency::ContainerEngine));
    loop {
        let outcome = match engine {
            None => attempt(&mut park).await,
            Some(engine) => tokio::select! {
                biased;
                outcome = attempt(&mut park) => outcome,
                never = engine.watch(tell) => match never {},
            },
        };
        if let Some(outcome) = outcome {
            phases.parked(None);
            return outcome;
        }
        if let Some(provider) = provider {
            provider.remove_leftovers().await;
        }
    }
}
