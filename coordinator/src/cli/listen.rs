//! `--listen`: health checks and metrics of a run or a worker.

use std::net::SocketAddr;

use clap::Args;
use rollout_protocol::exit::ExitCode;

use super::error::CliError;
use crate::events::SinkStarter;
use crate::events::sinks::metrics;
use crate::events::sinks::metrics::RunMetrics;
use crate::serve::{Monitoring, MonitoringServer};
use crate::traces::TraceExport;

/// The option.
#[derive(Debug, Clone, Args)]
pub(super) struct ListenArgs {
    /// Address for `/healthz`, `/readyz` and `/metrics` (Prometheus), such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

impl ListenArgs {
    /// Shows a run, if that is wanted; adds the sink that feeds the server.
    pub(super) async fn for_run(
        &self,
        sinks: &mut Vec<SinkStarter>,
        traces: &TraceExport,
    ) -> Result<Option<MonitoringServer>, CliError> {
        let Some(address) = self.listen else { return Ok(None) };
        let monitoring = Monitoring::new(|registry| {
            traces.register(registry);
            let run = RunMetrics::register(registry);
            sinks.push(metrics(run.clone()));
            Box::new(move || run.check_ready().map_err(|reason| reason.to_string()))
        });
        start(address, monitoring).await.map(Some)
    }

    /// Shows a worker, if that is wanted.
    #[cfg(feature = "nats")]
    pub(super) async fn for_worker(
        &self,
        worker: &worker::MonitoredWorker,
        traces: &TraceExport,
    ) -> Result<Option<MonitoringServer>, CliError> {
        match self.listen {
            Some(address) => start(address, worker.monitoring(traces)).await.map(Some),
            None => Ok(None),
        }
    }
}

async fn start(address: SocketAddr, monitoring: Monitoring) -> Result<MonitoringServer, CliError> {
    let server = MonitoringServer::start(address, monitoring).await.map_err(|error| {
        CliError::from_cause(ExitCode::Config, format!("cannot listen on {address}"), &error)
            .hint("choose an address of this host and a free port with `--listen`")
    })?;
    tracing::info!("health checks and metrics are at http://{}", server.address());
    Ok(server)
}

#[cfg(feature = "nats")]
pub(super) mod worker {
    use std::fmt;
    use std::sync::{Arc, OnceLock};

    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::DescriptorEncoder;
    use rollout_base::metrics::WorkerMetrics;
    use rollout_worker::service::WorkerMonitor;

    use crate::serve::Monitoring;
    use crate::traces::TraceExport;

    /// A worker that may not have started yet.
    #[derive(Debug, Clone, Default)]
    pub(in crate::cli) struct MonitoredWorker {
        /// Its counters.
        pub(in crate::cli) metrics: WorkerMetrics,
        /// Its state, once it has started.
        pub(in crate::cli) monitor: Arc<OnceLock<WorkerMonitor>>,
    }

    impl MonitoredWorker {
        pub(super) fn monitoring(&self, traces: &TraceExport) -> Monitoring {
            let worker = self.clone();
            Monitoring::new(|registry| {
                traces.register(registry);
                worker.metrics.register(registry);
                registry.register_collector(Box::new(worker.clone()));
                Box::new(move || match worker.monitor.get() {
                    Some(monitor) => monitor.check_ready().map_err(|reason| reason.to_string()),
                    None => Err("the worker is starting".to_owned()),
                })
            })
        }
    }

    impl Collector for MonitoredWorker {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.monitor.get().map_or(Ok(()), |monitor| monitor.encode(encoder))
        }
    }
}
