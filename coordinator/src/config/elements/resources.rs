//! Resources of task files (`[environment]`) and the overrides of a job.

use rollout_protocol::spec::resources::{ResourceCeilings, Resources};

use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields, Scalar};
use super::units::{
    AmountError, EXPECTED_CPUS, EXPECTED_MEBIBYTES, MAX_CPUS, MAX_MIB, cpus, quantity, whole_cpus,
};

keys! {
    /// Resource overrides of a job.
    pub(crate) table OverrideKeys {
        override_cpus: Value("number"), "from the task",
            "CPUs of every environment; fractions are rounded up.";
        override_memory_mb: Value("integer"), "from the task", "Memory of every environment, MiB.";
        override_memory: Value("amount"), "from the task", "`override_memory_mb` with a unit, such as 2G.";
        override_storage_mb: Value("integer"), "from the task", "Storage of every environment, MiB.";
        override_storage: Value("amount"), "from the task",
            "`override_storage_mb` with a unit, such as 10G.";
        override_gpus: Value("integer"), "from the task", "GPUs of every environment.";
    }

    /// Resources of a task.
    pub(crate) table TaskResourceKeys {
        cpus: Value("number|text"), "rollout: 1, harbor: no ceiling",
            "CPUs; fractions are rounded up.";
        memory_mb: Value("integer"), "rollout: 2048, harbor: no ceiling", "Memory, MiB.";
        memory: Value("text"), "none", "Older spelling of `memory_mb`, with a unit: `2G`.";
        storage_mb: Value("integer"), "rollout: 10240, harbor: no ceiling", "Storage, MiB.";
        storage: Value("text"), "none", "Older spelling of `storage_mb`, with a unit: `10G`.";
    }

    /// Resources of the commands of a search.
    pub(crate) table PlaceResourceKeys {
        cpus: Value("number"), "1", "CPUs; fractions are rounded up.";
        memory_mb: Value("integer"), "2048", "Memory, MiB.";
        storage_mb: Value("integer"), "10240", "Storage, MiB.";
    }
}

/// Largest number of GPUs: above any host.
const MAX_GPUS: u64 = 1024;

/// Resource overrides of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceOverrides {
    /// CPUs.
    pub cpus: Option<u32>,
    /// Memory, MiB.
    pub memory_mb: Option<u64>,
    /// Storage, MiB.
    pub storage_mb: Option<u64>,
    /// GPUs.
    pub gpus: Option<u32>,
}

impl ResourceOverrides {
    /// The resources of a task with the overrides applied.
    pub fn apply(&self, task: &Resources) -> Resources {
        Resources {
            cpus: self.cpus.unwrap_or(task.cpus),
            memory_mb: self.memory_mb.unwrap_or(task.memory_mb),
            storage_mb: self.storage_mb.unwrap_or(task.storage_mb),
            gpus: self.gpus.unwrap_or(task.gpus),
            ceilings: ResourceCeilings {
                cpus: self.cpus.is_some() || task.ceilings.cpus,
                memory: self.memory_mb.is_some() || task.ceilings.memory,
                storage: self.storage_mb.is_some() || task.ceilings.storage,
            },
        }
    }
}

/// Reads `cpus`, `memory_mb`, `storage_mb` and the older `memory` and `storage` of a task file.
/// `unnamed` says which resources are ceilings although the file does not set them.
pub(crate) fn read_task(environment: &mut Fields<'_>, unnamed: ResourceCeilings) -> Resources {
    let default = Resources::default();
    let cpus = environment.take(TaskResourceKeys::cpus);
    let cpus = read_cpus(&cpus);
    let memory =
        [environment.take(TaskResourceKeys::memory_mb), environment.take(TaskResourceKeys::memory)];
    let storage = [
        environment.take(TaskResourceKeys::storage_mb),
        environment.take(TaskResourceKeys::storage),
    ];
    let memory_mb = task_amount(&memory, TaskResourceKeys::memory_mb.name);
    let storage_mb = task_amount(&storage, TaskResourceKeys::storage_mb.name);
    Resources {
        cpus: cpus.unwrap_or(default.cpus),
        memory_mb: memory_mb.unwrap_or(default.memory_mb),
        storage_mb: storage_mb.unwrap_or(default.storage_mb),
        gpus: default.gpus,
        ceilings: ResourceCeilings {
            cpus: cpus.is_some() || unnamed.cpus,
            memory: memory_mb.is_some() || unnamed.memory,
            storage: storage_mb.is_some() || unnamed.storage,
        },
    }
}

/// Reads `cpus`, `memory_mb` and `storage_mb` of an environment without older spellings. All are
/// ceilings.
pub(crate) fn read_command_resources(environment: &mut Fields<'_>) -> Resources {
    let default = Resources::default();
    let cpus = read_cpus(&environment.take(PlaceResourceKeys::cpus));
    let mut amount = |key| environment.take(key).integer(&(1..=MAX_MIB));
    Resources {
        cpus: cpus.unwrap_or(default.cpus),
        memory_mb: amount(PlaceResourceKeys::memory_mb).unwrap_or(default.memory_mb),
        storage_mb: amount(PlaceResourceKeys::storage_mb).unwrap_or(default.storage_mb),
        ..default
    }
}

/// Reads an amount; the newer spelling wins if present.
fn task_amount([newer, older]: &[Field<'_>; 2], newer_name: &str) -> Option<u64> {
    if newer.is_present() {
        if older.is_present() {
            older.warn(format!("ignored because `{newer_name}` is given"));
        }
        return newer.integer(&(1..=MAX_MIB));
    }
    if older.is_present() {
        older.warn(format!("deprecated: use `{newer_name}`"));
    }
    read_amount(older)
}

/// Reads `override_cpus`, `override_memory[_mb]`, `override_storage[_mb]` and `override_gpus` of a
/// job file.
pub(crate) fn read_overrides(environment: &mut Fields<'_>) -> ResourceOverrides {
    let cpus = environment.take(OverrideKeys::override_cpus);
    let memory = [
        environment.take(OverrideKeys::override_memory_mb),
        environment.take(OverrideKeys::override_memory),
    ];
    let storage = [
        environment.take(OverrideKeys::override_storage_mb),
        environment.take(OverrideKeys::override_storage),
    ];
    ResourceOverrides {
        cpus: read_cpus(&cpus),
        memory_mb: override_amount(&memory),
        storage_mb: override_amount(&storage),
        gpus: read_gpus(&environment.take(OverrideKeys::override_gpus)),
    }
}

/// Reads a number of GPUs.
pub(crate) fn read_gpus(field: &Field<'_>) -> Option<u32> {
    field.integer(&(0..=MAX_GPUS)).and_then(|n| u32::try_from(n).ok())
}

fn override_amount([newer, older]: &[Field<'_>; 2]) -> Option<u64> {
    if newer.is_present() && older.is_present() {
        let found = format!("also `{}`", newer.location().key);
        older.reject(ErrorKind::Conflict, found, "only one of the two");
    }
    newer.integer(&(1..=MAX_MIB)).or_else(|| read_amount(older))
}

fn read_cpus(field: &Field<'_>) -> Option<u32> {
    let scalar = field.scalar()?;
    let value = match scalar {
        Scalar::Integer(value, _) => u32::try_from(value).ok().filter(|n| *n > 0),
        Scalar::Float(value, _) => whole_cpus(value),
        Scalar::Text(text) => cpus(text),
        Scalar::Bool(_) => None,
    };
    let value = value.filter(|n| *n <= MAX_CPUS);
    match value {
        None => field.bad_value(EXPECTED_CPUS),
        Some(whole) if is_whole(&scalar, whole) => {}
        Some(_) => field.warn("rounded up to whole CPUs: write a whole number"),
    }
    value
}

/// Whether a number of CPUs is written as the whole number `cpus`: nothing was rounded.
fn is_whole(written: &Scalar<'_>, cpus: u32) -> bool {
    let number = match written {
        Scalar::Integer(..) => return true,
        Scalar::Float(value, _) => Some(*value),
        Scalar::Text(text) => match text.trim().strip_suffix('m') {
            Some(thousandths) => thousandths.parse::<f64>().ok().map(|number| number / 1000.0),
            None => text.trim().parse::<f64>().ok(),
        },
        Scalar::Bool(_) => None,
    };
    number.is_some_and(|number| number >= f64::from(cpus))
}

fn read_amount(field: &Field<'_>) -> Option<u64> {
    let (Scalar::Text(text) | Scalar::Integer(_, text) | Scalar::Float(_, text)) =
        field.scalar()?
    else {
        field.bad_value(EXPECTED_MEBIBYTES);
        return None;
    };
    let amount = match quantity(text) {
        Ok(amount) => amount,
        Err(AmountError::Invalid) => {
            field.bad_value(EXPECTED_MEBIBYTES);
            return None;
        }
        Err(AmountError::UnderMebibyte) => {
            let found = format!("{}, less than a MiB", field.describe());
            let expected = "at least 1Mi; `Mi` is a MiB, `m` a thousandth of a byte";
            field.reject(ErrorKind::BadValue, found, expected);
            return None;
        }
    };
    if amount.guessed {
        field.warn(format!("a small number without unit is taken as MiB: {} MiB", amount.mib));
    }
    Some(amount.mib)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{ReadOutcome, read_fields};
    use super::*;

    fn task(text: &str) -> ReadOutcome<(u32, u64, u64)> {
        let (r, faults, warnings) =
            read_fields(text, |fields| read_task(fields, ResourceCeilings::ALL));
        ((r.cpus, r.memory_mb, r.storage_mb), faults, warnings)
    }

    #[test]
    fn task_resources_in_either_spelling_are_parsed() {
        for (text, expected, warnings) in [
            ("{}", (1, 2048, 10_240), 0),
            ("{cpus: 4, memory_mb: 512, storage_mb: 1}", (4, 512, 1), 0),
            ("{cpus: '2', memory: '2G', storage: '30G'}", (2, 2048, 30_720), 2),
            ("{cpus: '1'}", (1, 2048, 10_240), 0),
            ("{cpus: 2.0}", (2, 2048, 10_240), 0),
            ("{cpus: '500m', memory: 2147483648}", (1, 2048, 10_240), 2),
            ("{cpus: '2000m'}", (2, 2048, 10_240), 0),
            ("{cpus: 1.5, memory: '2048'}", (2, 2048, 10_240), 3),
            ("{memory_mb: 512, memory: junk}", (1, 512, 10_240), 1),
            ("{memory: 1e9, storage: '128974848000m'}", (1, 954, 123), 2),
        ] {
            assert_eq!(task(text), (expected, Vec::new(), warnings), "{text}");
        }
    }

    #[test]
    fn task_resources_with_invalid_value_are_refused() {
        for (text, key) in [
            ("{memory_mb: 0}", "memory_mb"),
            ("{memory_mb: -1, memory: 2G}", "memory_mb"),
            ("{memory: '0'}", "memory"),
            ("{memory: 500m}", "memory"),
            ("{memory: -1}", "memory"),
            ("{storage: plenty}", "storage"),
            ("{cpus: 0}", "cpus"),
            ("{cpus: -1}", "cpus"),
            ("{cpus: 'x'}", "cpus"),
        ] {
            assert_eq!(task(text).1, [(key.to_owned(), ErrorKind::BadValue)], "{text}");
        }
        assert_eq!(task("{memory_mb: 2G}").1, [("memory_mb".to_owned(), ErrorKind::WrongType)]);
    }

    #[test]
    fn resource_override_in_two_spellings_is_refused() {
        let (overrides, faults, warnings) = read_fields(
            "{override_cpus: '1.5', override_memory: 2G, override_storage_mb: 5, override_gpus: 0}",
            read_overrides,
        );
        // A number of CPUs is rounded up, and this is said.
        assert_eq!((faults, warnings), (vec![], 1));
        let expected = ResourceOverrides {
            cpus: Some(2),
            memory_mb: Some(2048),
            storage_mb: Some(5),
            gpus: Some(0),
        };
        assert_eq!(overrides, expected);
        let text = "{override_memory: 2G, override_memory_mb: 1, override_storage: 1G, override_storage_mb: 2}";
        assert_eq!(
            read_fields(text, read_overrides).1,
            [
                ("override_memory".to_owned(), ErrorKind::Conflict),
                ("override_storage".to_owned(), ErrorKind::Conflict),
            ]
        );
    }

    #[test]
    fn resource_override_replaces_only_named_resource() {
        let overrides = ResourceOverrides { memory_mb: Some(7), ..ResourceOverrides::default() };
        let task = Resources { cpus: 3, memory_mb: 1, storage_mb: 2, ..Resources::default() };
        assert_eq!(overrides.apply(&task), Resources { memory_mb: 7, ..task });
    }
}
