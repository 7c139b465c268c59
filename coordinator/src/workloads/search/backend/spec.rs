//! Specs of the evals and idea commands of a search.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_engine::WorkerRequirements;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::budget::TryBudget;
use rollout_protocol::spec::environment::{EnvironmentRates, EnvironmentSpec, PreservePolicy};
use rollout_protocol::spec::eval::{
    CommandAgent, EvalCommand, EvalCommands, EvalOrigin, EvalSpec, RepositorySpec, SweepEnvironment,
};
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::spec::ideas::{EarlierIdeas, IdeasOrigin, IdeasSpec};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::wire::offer::SizeClass;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, FilterDecision};
use rollout_store::{BlobStore, StoreError};

use crate::config::{
    CommandEnvironment as TreePlace, MetricDirection, ScoringProfile, SearchCommand as TreeCommand,
    TreeFile,
};
use crate::workloads::search::driver::{EvalOrder, IdeasOrder};

/// Parts of the spec that all evals of a search share.
#[derive(Debug, Clone)]
pub struct SearchPlan {
    tree: String,
    commands: EvalCommands,
    environment: TaskEnvironment,
    settings: EnvironmentSpec,
    sweep_environment: Option<Box<SweepEnvironment>>,
    results_file: String,
    timeout_sec: Option<f64>,
    sweep_config_limit: Option<u64>,
    ideas: IdeasCommand,
    gateway: Option<GatewaySpec>,
    secrets: BTreeSet<String>,
}

/// The idea command and its environment.
#[derive(Debug, Clone)]
struct IdeasCommand {
    command: EvalCommand,
    environment: TaskEnvironment,
    settings: EnvironmentSpec,
}

/// Failure to plan a search.
#[derive(Debug, thiserror::Error)]
pub enum SearchPlanError {
    /// A build context cannot be packed.
    #[error("cannot pack the build context {}", shown(path))]
    Context {
        /// The directory.
        path: std::path::PathBuf,
        /// The error of the archive.
        #[source]
        source: ArchiveError,
    },
    /// The local disk failed.
    #[error("cannot create a temporary file")]
    Disk(#[from] std::io::Error),
    /// The blob store failed.
    #[error("cannot store the build context")]
    Store(#[from] StoreError),
}

impl SearchPlan {
    /// Plans a search and stores its build contexts.
    ///
    /// # Errors
    /// [`SearchPlanError`].
    pub async fn new(tree: &TreeFile, store: Arc<dyn BlobStore>) -> Result<Self, SearchPlanError> {
        let metrics = metrics_text(&tree.profile);
        let command = |command: &TreeCommand| eval_command(command, &metrics, tree.budgets.step);
        let commands = &tree.commands;
        let (place, own) = (&commands.implement.environment, &commands.sweep.environment);
        let sweep_environment = match own == place {
            true => None,
            false => {
                let environment = environment(tree, own, Arc::clone(&store)).await?;
                Some(Box::new(SweepEnvironment {
                    environment,
                    settings: environment_settings(own),
                }))
            }
        };
        let place_of_ideas = &commands.ideas.environment;
        let ideas = IdeasCommand {
            command: command(&commands.ideas),
            environment: environment(tree, place_of_ideas, Arc::clone(&store)).await?,
            settings: environment_settings(place_of_ideas),
        };
        Ok(Self {
            ideas,
            gateway: tree.gateway.as_ref().map(|gateway| gateway.spec.clone()),
            secrets: tree.secrets.clone(),
            tree: tree.name.clone(),
            commands: EvalCommands {
                implement: command(&commands.implement),
                tests: commands.tests.as_ref().map(command),
                review: commands.review.as_ref().map(command),
                sweep: command(&commands.sweep),
            },
            environment: environment(tree, place, store).await?,
            settings: environment_settings(place),
            sweep_environment,
            results_file: tree.results_file.clone(),
            timeout_sec: tree.search.eval_timeout_seconds,
            sweep_config_limit: tree.search.sweep_config_limit,
        })
    }

    /// Requirements of evals and of idea commands on a worker.
    pub fn needs(&self) -> [WorkerRequirements; 2] {
        [self.needs_of_evals(), self.needs_of_ideas()]
    }

    fn needs_of_ideas(&self) -> WorkerRequirements {
        let IdeasCommand { command, environment, settings } = &self.ideas;
        let resources = &environment.resources;
        WorkerRequirements {
            class: SizeClass::for_resources(resources),
            cpus: resources.cpus,
            memory_mb: resources.memory_mb,
            provider: settings.provider.kind(),
            second_provider: None,
            variables: required_variables(
                [command].into_iter(),
                [environment].into_iter(),
                self.gateway_of(&[command]),
            ),
        }
    }

    fn needs_of_evals(&self) -> WorkerRequirements {
        let own = self.sweep_environment.as_deref();
        let environments = [Some(&self.environment), own.map(|own| &own.environment)];
        // An eval has one environment at a time, so the larger value of each is enough.
        let resources = own.map_or(self.environment.resources, |own| {
            max_resources(&self.environment.resources, &own.environment.resources)
        });
        let (provider, own) =
            (self.settings.provider.kind(), own.map(|o| o.settings.provider.kind()));
        let EvalCommands { implement, tests, review, sweep } = &self.commands;
        let commands = [Some(implement), tests.as_ref(), review.as_ref(), Some(sweep)];
        let gateway = self.eval_gateway();
        WorkerRequirements {
            class: SizeClass::for_resources(&resources),
            cpus: resources.cpus,
            memory_mb: resources.memory_mb,
            provider,
            second_provider: own.filter(|kind| *kind != provider),
            variables: required_variables(
                commands.into_iter().flatten(),
                environments.into_iter().flatten(),
                gateway,
            ),
        }
    }

    /// Path of the results below an attempt's directory.
    pub(super) fn results_file(&self) -> &str {
        &self.results_file
    }

    /// The spec of the idea command for a node.
    pub(super) fn spec_of_ideas(
        &self,
        order: &IdeasOrder,
        repository: RepositorySpec,
        earlier: Vec<EarlierIdeas>,
        pack: BlobRef,
    ) -> IdeasSpec {
        let IdeasCommand { command, environment, settings } = self.ideas.clone();
        let (tree, node) = (self.tree.clone(), order.node.node_id.to_string());
        let name = IdeasOrigin { tree, node };
        let (count, gateway) = (order.count, self.gateway_of(&[&command]).cloned());
        IdeasSpec {
            name,
            repository,
            command,
            environment,
            settings,
            count,
            earlier,
            pack,
            gateway,
            secrets: self.secrets.clone(),
        }
    }

    /// The model servers of commands: none without an agent.
    fn gateway_of(&self, commands: &[&EvalCommand]) -> Option<&GatewaySpec> {
        self.gateway.as_ref().filter(|_| commands.iter().any(|command| command.agent.is_some()))
    }

    /// The model servers of evals.
    fn eval_gateway(&self) -> Option<&GatewaySpec> {
        let EvalCommands { implement, review, .. } = &self.commands;
        self.gateway_of(&[implement, review.as_ref().unwrap_or(implement)])
    }

    /// The model servers of all agents.
    #[cfg(feature = "nats")]
    pub(crate) fn gateway(&self) -> Option<&GatewaySpec> {
        self.gateway.as_ref()
    }

    /// The spec of an eval.
    pub(super) fn spec(
        &self,
        order: &EvalOrder,
        repository: RepositorySpec,
        idea: BlobRef,
    ) -> EvalSpec {
        let (node, eval) = (order.eval.parent_node_id, order.eval.eval_id);
        let file = Path::new(&order.eval.idea_path).file_stem().unwrap_or_default();
        let idea_name = file.to_string_lossy();
        EvalSpec {
            name: EvalOrigin {
                tree: self.tree.clone(),
                node: node.to_string(),
                eval: eval.to_string(),
            },
            repository,
            idea,
            message: format!(
                "{idea_name}\n\nEval {eval} of {}, tried on node {node}.\n",
                self.tree
            ),
            commands: self.commands.clone(),
            timeout_sec: self.timeout_sec,
            environment: self.environment.clone(),
            settings: self.settings.clone(),
            sweep_environment: self.sweep_environment.clone(),
            user: None,
            results_file: self.results_file.clone(),
            sweep_config_limit: self.sweep_config_limit,
            env: BTreeMap::new(),
            gateway: self.eval_gateway().cloned(),
            secrets: self.secrets.clone(),
        }
    }
}

/// A command of the file as a worker runs it.
fn eval_command(command: &TreeCommand, metrics: &str, budget: Option<TryBudget>) -> EvalCommand {
    let own = command.env.iter().map(|(name, value)| (name.clone(), value.template.clone()));
    let mut env = BTreeMap::new();
    let agent = command.agent.as_ref().map(|agent| {
        env.clone_from(&agent.spec.env);
        Box::new(CommandAgent {
            spec: AgentSpec { env: BTreeMap::new(), ..agent.spec.clone() },
            prompt: agent.prompt.clone(),
            metrics: metrics.to_owned(),
            budget,
        })
    });
    // Variables of the file win.
    env.extend(own);
    let (script, timeout_sec) = (command.run.clone(), Some(command.timeout_sec));
    EvalCommand { script, agent, timeout_sec, env }
}

/// The metrics of a search, for the prompts of agents.
fn metrics_text(profile: &ScoringProfile) -> String {
    let better = |direction: MetricDirection| match direction {
        MetricDirection::Higher => "higher is better",
        MetricDirection::Lower => "lower is better",
    };
    let primary = &profile.primary;
    let mut lines = vec![format!(
        "- `{}` ({}): the primary metric, which must not get worse",
        primary.column,
        better(primary.direction)
    )];
    lines.extend(profile.metrics.iter().map(|metric| {
        format!("- `{}` ({}), weight {}", metric.column, better(metric.direction), metric.weight)
    }));
    lines.extend(profile.risk.iter().map(|metric| {
        format!("- `{}` ({}): must not get much worse", metric.column, better(metric.direction))
    }));
    lines.join("\n")
}

/// Variables without a default that commands, their environments and model servers refer to.
fn required_variables<'a>(
    commands: impl Iterator<Item = &'a EvalCommand>,
    environments: impl Iterator<Item = &'a TaskEnvironment>,
    gateway: Option<&'a GatewaySpec>,
) -> BTreeSet<String> {
    let templates = commands.flat_map(|command| command.env.values());
    let templates = templates.chain(environments.flat_map(|environment| environment.env.values()));
    let templates = templates.chain(gateway.into_iter().flat_map(GatewaySpec::keys));
    let named = templates.flat_map(|template| template.variables());
    named.filter(|(_, has_default)| !has_default).map(|(name, _)| name).collect()
}

async fn environment(
    tree: &TreeFile,
    environment: &TreePlace,
    store: Arc<dyn BlobStore>,
) -> Result<TaskEnvironment, SearchPlanError> {
    let context = match &environment.context {
        Some(dir) => Some(pack(&tree.resolve_path(dir), store).await?),
        None => None,
    };
    let (docker_image, resources) = (environment.docker_image.clone(), environment.resources);
    let proxies = environment.proxies.variables();
    let env = proxies.map(|(name, value)| (name, value.template.clone())).collect();
    Ok(TaskEnvironment {
        docker_image,
        context,
        resources,
        env,
        start_grace_sec: environment.start_grace_sec,
        ..Default::default()
    })
}

/// The larger value of each resource.
fn max_resources(one: &Resources, other: &Resources) -> Resources {
    Resources {
        cpus: one.cpus.max(other.cpus),
        memory_mb: one.memory_mb.max(other.memory_mb),
        storage_mb: one.storage_mb.max(other.storage_mb),
        ..*one
    }
}

fn environment_settings(environment: &TreePlace) -> EnvironmentSpec {
    EnvironmentSpec {
        provider: environment.provider.clone(),
        force_build: false,
        preserve_env: PreservePolicy::default(),
        rates: EnvironmentRates::default(),
    }
}

/// Packs and stores a build context.
async fn pack(dir: &Path, store: Arc<dyn BlobStore>) -> Result<BlobRef, SearchPlanError> {
    let scratch = tempfile::tempdir()?;
    let (from, to) = (dir.to_owned(), scratch.path().join("context.tar"));
    let archive = to.clone();
    let packed = supervise::blocking(move || {
        archive::pack(&from, &archive, ArchiveLimits::BUNDLE, &|_, _| FilterDecision::Include)
    });
    packed.await.map_err(|source| SearchPlanError::Context { path: dir.to_owned(), source })?;
    Ok(store.put_file(&to, MediaType::Tar).await?)
}

#[cfg(test)]
mod tests {
    use rollout_store::MemoryStore;

    use super::*;
    use crate::config::{Diagnostics, TreeOptions, read_tree};

    #[tokio::test]
    async fn spec_of_each_environment_has_its_start_grace() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("tree.yaml");
        std::fs::write(dir.path().join("base.csv"), "config_id\n0\n").expect("written");
        let text = "tree_run_id: run\nroot_baseline_csv: base.csv\n\
                    environment: {docker_image: a, start_grace_sec: 2}\n\
                    commands: {ideas: {run: a, environment: {docker_image: a}}, implement: {run: b}, \
                    sweep: {run: c, environment: {docker_image: a, start_grace_sec: 0}}}\n";
        std::fs::write(&file, text).expect("written");
        let mut problems = Diagnostics::default();
        let tree = read_tree(&file, &TreeOptions::for_command_line(&|_| true), &mut problems);
        let tree = problems.finish(tree).expect("no faults").0.expect("a search");
        let plan = SearchPlan::new(&tree, Arc::new(MemoryStore::default())).await.expect("planned");
        let sweep = plan.sweep_environment.expect("another environment");
        let environments = [&plan.ideas.environment, &plan.environment, &sweep.environment];
        let graces = environments.map(|environment| environment.start_grace_sec);
        assert_eq!(graces, [None, Some(2.0), Some(0.0)]);
    }
}
