//! `rollout tree run --nats`: evals run on workers elsewhere.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rollout_protocol::limits::LOCK_STALE;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::store::BlobStore;
use tokio::sync::mpsc;

use super::run::RunArgs;
use super::sit::patience;
use crate::cli::cluster::{Elsewhere, NatsArgs};
use crate::cli::error::CliError;
use crate::engine::Patience;
use crate::engine::core::Bounds;
use crate::launch::host::HostPaths;
use crate::workloads::search::backend::{Cluster, Plan, Progress};
use crate::workloads::search::driver::{Directory, Opening, TreeError};
use crate::workloads::search::manifest::Manifest;

/// Where workers are.
#[derive(Debug, Args)]
pub(super) struct ElsewhereArgs {
    /// Pool of the workers
    #[arg(long, value_name = "NAME", requires = "url")]
    pool: Option<String>,

    /// How long evals that no worker could run wait for one that can before they fail
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = crate::cli::values::duration)]
    unplaceable_timeout: Duration,

    #[command(flatten)]
    nats: NatsArgs,
}

impl ElsewhereArgs {
    /// Whether evals run on workers elsewhere.
    pub(super) fn is_given(&self) -> bool {
        self.nats.url.is_some()
    }

    /// Goes on with a search until it has ended.
    ///
    /// # Errors
    /// [`CliError`].
    #[expect(clippy::too_many_arguments, reason = "what a sitting consists of, passed on")]
    pub(super) async fn search(
        &self,
        args: &RunArgs,
        opening: Opening,
        store: Arc<dyn BlobStore>,
        host: HostPaths,
        environment: Vec<(String, String)>,
        mut stops: mpsc::Receiver<StopLevel>,
        progress: mpsc::UnboundedSender<Progress>,
    ) -> Result<Manifest, CliError> {
        let connected = Elsewhere::connect(&self.nats, self.pool.as_deref()).await?;
        let Some(elsewhere) = connected else {
            return Err(CliError::usage("`--nats` names no server"));
        };
        let plan = Plan::new(&opening.tree, Arc::clone(&store)).await.map_err(TreeError::from)?;
        let own = opening.tree.runs_root.join(".rollout");
        let layout = Directory::new(opening.tree.run_dir()).layout().clone();
        let classes = vec![plan.needs().class];
        let ready = elsewhere.prepare(classes, &store, own, layout, &mut stops).await?;
        let stale = args.lock_stale_seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let cluster = Cluster {
            opening,
            plan,
            // Workers go on while their coordinator is stopped or hangs: another one may, too.
            patience: Patience { hung: true, stale: stale.unwrap_or(LOCK_STALE), ..patience(args) },
            store,
            dispatch: Arc::clone(&ready.dispatch),
            board: Arc::clone(&ready.board),
            pool: ready.pool.clone(),
            bounds: Bounds {
                lease: self.nats.access.lease,
                unplaceable_timeout: self.unplaceable_timeout,
                ..Bounds::default()
            },
            host,
            environment,
            fail_unable: args.fail_unable_evals,
            stops,
            progress,
        };
        Ok(cluster.run().await?)
    }
}
