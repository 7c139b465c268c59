//! Services beside the environment: a compose file as the containers of one pod.
//!
//! * `interpolate`, `table`, `units`, `env_file`: the values of the file; `size`: its limits;
//!   `problems`: its keys that a pod does not support.
//! * `service`, `health`, `mounts`: one service, as `model` describes it; `network`, `order`: all of
//!   them together.
//! * `containers`: the containers and volumes of the pod.
//!
//! Everything is decided from the file alone, before anything is created. The containers of a pod
//! share one network, one node and one life, so a file that separates its services, or that counts
//! their restarts, is unsupported.

mod containers;
mod env_file;
mod health;
mod interpolate;
mod model;
mod mounts;
mod network;
mod order;
mod problems;
mod service;
mod size;
mod table;
#[cfg(test)]
mod tests;
mod units;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_environment::compose::{
    self, CONTAINERS, CONTEXT, HostPath, MAIN, SERVICES_REFERENCE_PREFIX,
};
use rollout_environment::{ComposeFile, CreateRequest, Failure, FailureKind, ImageSource};
use rollout_protocol::limits;
use serde_json::{Value, json};

pub(super) use self::containers::{
    ServiceContainer, ServiceSetup, ServiceShares, add_services, is_service,
};
use self::interpolate::{Interpolation, UsePlace, VariableUse, Variables};
pub(super) use self::model::{ServiceImage, ServiceRole, ServiceSpec, ServicesPlan};

use self::problems::{Problems, failure};
use self::service::{Prepared, ServiceContext};
use self::size::VariableBytes;
use self::table::Table;

/// The plan of a request with a compose file. `may_show_variables` is the operator's word that
/// variables of trials may be in manifests.
///
/// # Errors
/// [`Failure`] that names the keys that are unsupported or wrong.
pub(super) fn plan(
    request: &CreateRequest,
    file: &ComposeFile,
    may_show_variables: bool,
) -> Result<ServicesPlan, Failure> {
    let reference = request.image.reference.as_str();
    let is_prepared = !reference.starts_with(SERVICES_REFERENCE_PREFIX);
    let is_built = matches!(request.source, ImageSource::Context { .. });
    let prepared = is_prepared.then_some(Prepared { reference, is_built });
    let mut variables = provided(file, if is_prepared { reference } else { "rollout/main" })?;
    variables.provided.insert("CPUS".to_owned(), request.resources.cpus.to_string());
    variables.provided.insert("MEMORY".to_owned(), format!("{}M", request.resources.memory_mb));
    variables.trial.clone_from(&request.env);
    let reading = FileReading { file, variables: &variables, prepared, may_show_variables };
    let (plan, unset) = reading.run()?;
    for (name, at) in &unset {
        tracing::warn!("{}: `{at}`: the variable `{name}` is not set", file.name());
    }
    Ok(plan)
}

/// Checks a file as far as that is possible without its trial.
///
/// # Errors
/// [`Failure`] that names the keys that are unsupported or wrong.
pub(crate) fn check(file: &ComposeFile) -> Result<(), Failure> {
    let mut variables = provided(file, "rollout/main")?;
    for name in ["CPUS", "MEMORY"] {
        variables.provided.insert(name.to_owned(), "1".to_owned());
    }
    // The task may name the environment's image.
    let is_built = !compose::defines_image(&file.dir);
    let prepared = Some(Prepared { reference: "rollout/main", is_built });
    let reading = FileReading { file, variables: &variables, prepared, may_show_variables: true };
    match reading.run() {
        // Values that are not known yet decide.
        Ok(_) => Ok(()),
        Err(_) if reading.has_unset_variables() => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// The variables of every task, and those of `.env`.
fn provided(file: &ComposeFile, image: &str) -> Result<Variables, Failure> {
    let root = root(file)?;
    let mut provided = BTreeMap::from([
        (CONTEXT.to_owned(), root.display().to_string()),
        ("MAIN_IMAGE_NAME".to_owned(), image.to_owned()),
        ("PREBUILT_IMAGE_NAME".to_owned(), image.to_owned()),
    ]);
    provided.extend(HostPath::variables().map(|(name, path)| (name, path.to_owned())));
    let own = env_file::read(&root, ".env", &VariableBytes::default());
    let own = own.map_err(|why| failure(file, FailureKind::Unsupported, &why))?;
    Ok(Variables { provided, trial: BTreeMap::new(), file: own.unwrap_or_default() })
}

fn root(file: &ComposeFile) -> Result<std::path::PathBuf, Failure> {
    file.dir
        .canonicalize()
        .map_err(|error| Failure::local(FailureKind::Bug, "cannot read the build context", error))
}

/// One reading of a file.
#[derive(Debug)]
struct FileReading<'a> {
    file: &'a ComposeFile,
    variables: &'a Variables,
    prepared: Option<Prepared<'a>>,
    may_show_variables: bool,
}

impl FileReading<'_> {
    /// The plan, and the variables that are not set, with the path of their first use.
    fn run(&self) -> Result<(ServicesPlan, BTreeMap<String, String>), Failure> {
        let root = root(self.file)?;
        let problems = Problems::default();
        let mut value = self.document(&root)?;
        let mut interpolation = Interpolation::new(self.variables);
        let replaced = interpolation.value(&mut value);
        replaced.map_err(|why| failure(self.file, FailureKind::Refused, &why))?;
        let Interpolation { trial, unset, bytes, .. } = interpolation;
        let trial = RefCell::new(trial);
        let mut top = Table::new(String::new(), value, &problems);
        let plan = self.plan(&root, &mut top, &trial, &bytes);
        top.finish(|key| match key {
            "include" => "write the services into one file",
            "configs" | "secrets" => {
                "a file of the task cannot be mounted into a pod: copy it into an image"
            }
            _ => "is not supported",
        });
        if let Some(plan) = &plan
            && !self.may_show_variables
        {
            refuse_variables(plan, &trial.borrow(), &problems);
        }
        problems.into_result(self.file)?;
        let plan = plan.ok_or_else(|| failure(self.file, FailureKind::Refused, "no services"))?;
        Ok((plan, unset))
    }

    /// Whether the file refers to variables that are not set here.
    fn has_unset_variables(&self) -> bool {
        let Ok(root) = root(self.file) else { return false };
        let Ok(mut value) = self.document(&root) else { return false };
        let mut interpolation = Interpolation::new(self.variables);
        // It ends at the first problem.
        drop(interpolation.value(&mut value));
        interpolation.is_incomplete
    }

    /// The file as a document, with `<<` merged.
    fn document(&self, root: &Path) -> Result<Value, Failure> {
        let refused = |why: String| failure(self.file, FailureKind::Refused, &why);
        let unsupported = |why: &str| failure(self.file, FailureKind::Unsupported, why);
        let own = self.file.file.as_ref().filter(|_| self.file.overlays.is_empty());
        let Some(own) = own else {
            return Err(unsupported("compose files of a job need `environment.type: docker`"));
        };
        let read =
            ConfinedDir::open(root).and_then(|dir| dir.read_text(own, limits::CONFIG_FILE_BYTES));
        let text = read.map_err(|error| match error.kind() {
            _ if leads_outside(&error) => {
                unsupported("it is outside the task's environment directory")
            }
            ErrorKind::FileTooLarge | ErrorKind::InvalidInput | ErrorKind::IsADirectory => {
                let most = limits::CONFIG_FILE_BYTES;
                refused(format!("it is not a file of at most {most} bytes"))
            }
            _ => refused(format!("cannot read it: {error}")),
        })?;
        let value = compose::parse(&text).map_err(refused)?;
        size::check(&value).map_err(refused)?;
        if value.is_object() { Ok(value) } else { Err(refused("it is not a map".to_owned())) }
    }

    fn plan(
        &self,
        root: &Path,
        top: &mut Table<'_>,
        trial: &RefCell<BTreeSet<VariableUse>>,
        bytes: &VariableBytes,
    ) -> Option<ServicesPlan> {
        let problems = top.problems;
        top.ignore(&["name", "version"]);
        network::volumes(top.table("volumes"));
        let internal = network::definitions(top.table("networks"));
        let mut services: BTreeMap<String, table::Taken> =
            top.table("services").map(|table| table.into_entries().collect()).unwrap_or_default();
        services.retain(|name, (_, value)| name == MAIN || !service::has_profiles(value));
        if !services.contains_key(MAIN) {
            // The base file of every task has it.
            services.insert(MAIN.to_owned(), (format!("services.{MAIN}"), json!({})));
        }
        if services.len() as u64 > CONTAINERS + 1 {
            let why = format!("at most {CONTAINERS} beside `{MAIN}` are allowed");
            problems.unsupported("services", &why);
            return None;
        }
        let started: BTreeSet<String> = services.keys().cloned().collect();
        let (variables, prepared) = (self.variables, self.prepared);
        let started = &started;
        let context = ServiceContext { root, variables, trial, bytes, prepared, started };
        let read = |(name, (at, value)): (String, table::Taken)| {
            service::read(&name, Table::new(at, value, problems), &context)
        };
        let (mut own, others): (Vec<_>, Vec<_>) =
            services.into_iter().map(read).partition(|service| service.name == MAIN);
        let mut main = own.pop()?;
        let others = order::arrange(&mut main, others, problems);
        let all: Vec<&ServiceSpec> = [&main].into_iter().chain(&others).collect();
        let has_no_network = network::check(&all, &internal, problems);
        let host_names = network::host_names(&all, problems);
        let extra_hosts = network::extra_hosts(&all);
        let architecture = network::architecture(&all, problems);
        let named = others.iter().find(|service| service.links.names_networks);
        let service_with_networks = named.map(|service| service.name.clone());
        let mut plan = ServicesPlan {
            main,
            others,
            host_names,
            extra_hosts,
            has_no_network,
            service_with_networks,
            architecture,
        };
        plan.exempt_hosts();
        Some(plan)
    }
}

/// Refuses values that would put variables of the trial into the manifest, which everybody who may
/// read pods sees. Those of the environment itself travel with its commands, unless something else
/// of it runs.
fn refuse_variables(plan: &ServicesPlan, trial: &BTreeSet<VariableUse>, problems: &Problems) {
    for used in trial {
        let is_hidden = match &used.place {
            // It is also replaced where services merge it.
            UsePlace::Part => true,
            UsePlace::Environment(service) => service == MAIN && !plan.main.runs_by_itself(),
            UsePlace::Other => false,
        };
        if !is_hidden {
            problems.unsupported(&used.at, &shown_variable(&used.name));
        }
    }
}

/// Why a variable of the trial cannot be in a manifest.
fn shown_variable(name: &str) -> String {
    format!(
        "it would show the trial's variable `{name}` to everybody who may read pods; the operator \
         can set `trial_variables_in_manifests`"
    )
}
