//! The classic builder, for engines without BuildKit.

use std::io;

use bollard::errors::Error;
use bollard::query_parameters::BuildImageOptions;
use futures_util::{Stream, StreamExt as _};
use rollout_base::supervise;
use rollout_environment::upload;
use rollout_environment::{Failure, FailureKind};

use super::context::{self, pack_with};
use super::log::ImageBuildLog;
use super::{BuildFailure, BuildSpec, CLASSIC, failure_kind, network_failure, reason};
use crate::client::DockerClient;

/// Builds the image. Dropping the future cancels the build.
pub(super) async fn run(
    client: &DockerClient,
    build: &BuildSpec,
    text: &str,
    no_cache: bool,
    log: &mut ImageBuildLog,
) -> Result<(), BuildFailure> {
    let what = build.title();
    let (context, dockerfile) = (build.context.clone(), build.dockerfile.clone());
    let named = (context.clone(), dockerfile.clone());
    let place = supervise::blocking(move || context::place(&named.0, &named.1)).await;
    let place = place.map_err(|error| {
        let message = format!("{what}: cannot read the build context");
        Failure::local(FailureKind::Refused, message, error)
    })?;
    let docker = client.slow().await?;
    let (writer, mut pieces) = upload::chunk_channel();
    let body = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
    let body = bollard::body_try_stream(body);
    let options =
        BuildImageOptions { dockerfile: place.clone(), ..build.options(no_cache, CLASSIC) };
    let text = text.to_owned();
    let sending = supervise::blocking(move || {
        writer.run(|to| pack_with(&context, &dockerfile, (&place, &text), to))
    });
    let building = follow(docker.build_image(options, None, Some(body)), log);
    let (built, sent) = tokio::join!(building, sending);
    if let Err(error) = sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let message = format!("{what}: cannot read the build context");
        return Err(Failure::local(FailureKind::Refused, message, error).into());
    }
    match built {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = format!("{what}: the engine ended the build without a result");
            Err(Failure::new(FailureKind::Unreachable, message).into())
        }
        Err(error) => Err(failed(client, &what, error, log).into()),
    }
}

/// Follows the build to its end; returns whether it produced an image.
async fn follow(
    mut steps: impl Stream<Item = Result<bollard::models::BuildInfo, Error>> + Unpin,
    log: &mut ImageBuildLog,
) -> Result<bool, Error> {
    let mut built = false;
    while let Some(step) = steps.next().await {
        let step = step?;
        for text in [step.stream, step.status].into_iter().flatten() {
            log.add(&text);
        }
        built |= step.aux.is_some_and(|image| image.id.is_some());
    }
    Ok(built)
}

fn failed(client: &DockerClient, what: &str, error: Error, log: &ImageBuildLog) -> Failure {
    let mut failure = match error {
        Error::DockerStreamError { error } => {
            let (said, own) = (error.trim(), reason::own_words(&error));
            if let Some(failure) = network_failure(what, &own, said) {
                return failure;
            }
            let of_engine = Error::DockerStreamError { error: own.clone() };
            let from_engine = client.failure(what, of_engine).kind;
            Failure::new(failure_kind(&own, from_engine), format!("{what}: {said}"))
        }
        error => {
            let mut failure = client.failure(what, error);
            if failure.message.contains("Cannot locate specified Dockerfile") {
                failure.kind = FailureKind::Refused;
            }
            failure
        }
    };
    let tail = log.tail();
    if !tail.is_empty() {
        failure.message.push_str(&format!("\nThe end of the build log:\n{}", tail.trim()));
    }
    failure
}
