//! Trials with the minimum number of Engine API calls that any program needs.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, DownloadFromContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptions, UploadToContainerOptions,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rollout_protocol::spec::resources::Resources;

use crate::product::{IMAGE, SOLUTION, TEST};
use crate::report::BenchBatch;
use crate::{BenchError, StopSignals, own_cpu};

/// Calls of one trial: create, put, start, three for the agent, put, three for the tests, get,
/// remove.
pub(crate) const CALLS: u32 = 12;

/// Label of the benchmark's containers, with the id of the process that created them.
const LABEL: &str = "dev.rollout.bench";

/// Command that keeps the container alive, the same as the program's.
const KEEP_ALIVE: &str = "trap \"exit 0\" TERM; while :; do sleep 3600 & wait $!; done";

/// The engine, and the two archives of a trial.
pub(crate) struct EngineFloor {
    docker: Docker,
    before_start: Vec<u8>,
    before_tests: Vec<u8>,
}

impl EngineFloor {
    /// Connects to the engine that the program also uses.
    pub(crate) async fn connect() -> Result<Self, BenchError> {
        let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
        let before_start = archive(
            &["logs", "logs/agent", "logs/verifier", "oracle"],
            &[("tmp/instruction.md", "Solve it.\n"), ("oracle/solve.sh", SOLUTION)],
        )?;
        let before_tests = archive(&["logs/verifier", "tests"], &[("tests/test.sh", TEST)])?;
        Ok(Self { docker, before_start, before_tests })
    }

    /// Runs `number` trials, `concurrency` at a time.
    pub(crate) async fn trials(
        &self,
        number: u32,
        concurrency: u32,
        stops: &mut StopSignals,
    ) -> Result<BenchBatch, BenchError> {
        let (began, cpu) = (Instant::now(), own_cpu());
        let trials = stream::iter(0..number)
            .map(|_| self.trial())
            .buffer_unordered(concurrency as usize)
            .try_collect::<Vec<()>>();
        tokio::select! {
            ended = trials => drop(ended?),
            () = stops.wait() => return Err("stopped".into()),
        }
        let (wall, cpu) = (began.elapsed().as_secs_f64(), own_cpu() - cpu);
        Ok(BenchBatch { wall, cpu, trials: number })
    }

    /// Removes containers left by this process and by dead ones.
    pub(crate) async fn sweep(&self) -> Result<(), BenchError> {
        let filters = HashMap::from([("label", vec![LABEL])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        for container in self.docker.list_containers(Some(options)).await? {
            let maker = container.labels.unwrap_or_default().remove(LABEL).unwrap_or_default();
            let is_ours = maker == std::process::id().to_string();
            if let (Some(id), true) = (container.id, is_ours || !is_alive(&maker)) {
                self.remove(&id).await?;
            }
        }
        Ok(())
    }

    async fn trial(&self) -> Result<(), BenchError> {
        let made = self.docker.create_container(None::<CreateContainerOptions>, body()).await?;
        self.put(&made.id, &self.before_start).await?;
        self.docker.start_container(&made.id, None).await?;
        self.exec(&made.id, "/oracle/solve.sh").await?;
        self.put(&made.id, &self.before_tests).await?;
        self.exec(&made.id, "/tests/test.sh").await?;
        self.get(&made.id, "/logs").await?;
        self.remove(&made.id).await
    }

    async fn put(&self, id: &str, archive: &[u8]) -> Result<(), BenchError> {
        let options = UploadToContainerOptions { path: "/".to_owned(), ..Default::default() };
        let body = bollard::body_full(archive.to_vec().into());
        Ok(self.docker.upload_to_container(id, Some(options), body).await?)
    }

    async fn exec(&self, id: &str, script: &str) -> Result<(), BenchError> {
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(vec!["bash".to_owned(), script.to_owned()]),
            ..Default::default()
        };
        let exec = self.docker.create_exec(id, options).await?.id;
        let started = self.docker.start_exec(&exec, None).await?;
        if let StartExecResults::Attached { output, .. } = started {
            output.try_collect::<Vec<LogOutput>>().await?;
        }
        match self.docker.inspect_exec(&exec).await?.exit_code {
            Some(0) => Ok(()),
            code => Err(format!("{script} ended with {code:?}").into()),
        }
    }

    async fn get(&self, id: &str, path: &str) -> Result<(), BenchError> {
        let options = DownloadFromContainerOptions { path: path.to_owned() };
        let mut pieces = self.docker.download_from_container(id, Some(options));
        let mut found = 0;
        while let Some(piece) = pieces.try_next().await? {
            found += piece.len();
        }
        if found == 0 { Err(format!("{path} is empty").into()) } else { Ok(()) }
    }

    async fn remove(&self, id: &str) -> Result<(), BenchError> {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        Ok(self.docker.remove_container(id, Some(options)).await?)
    }
}

/// Configuration of a container as the program creates it, so that the engine's work is the same.
fn body() -> ContainerCreateBody {
    let resources = Resources::default();
    let memory = i64::try_from(resources.memory_mb * 1024 * 1024).ok();
    ContainerCreateBody {
        image: Some(IMAGE.to_owned()),
        cmd: Some(["/bin/sh", "-c", KEEP_ALIVE].map(str::to_owned).to_vec()),
        labels: Some(HashMap::from([(LABEL.to_owned(), std::process::id().to_string())])),
        host_config: Some(HostConfig {
            init: Some(true),
            nano_cpus: Some(i64::from(resources.cpus) * 1_000_000_000),
            memory,
            memory_swap: memory,
            pids_limit: Some(512),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            network_mode: Some("bridge".to_owned()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn archive(directories: &[&str], files: &[(&str, &str)]) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let header = |kind, mode, size| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header
    };
    for path in directories {
        let mut header = header(tar::EntryType::Directory, 0o1777, 0);
        tar.append_data(&mut header, path, std::io::empty())?;
    }
    for (path, text) in files {
        let mut header = header(tar::EntryType::Regular, 0o755, text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes())?;
    }
    tar.into_inner()
}

fn is_alive(pid: &str) -> bool {
    !pid.is_empty() && Path::new("/proc").join(pid).exists()
}
