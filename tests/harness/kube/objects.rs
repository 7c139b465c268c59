//! Objects of the cluster with their resource versions, and the log of their changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::resources::ResourceType;
use super::status::ApiError;

/// Changes that are kept for watches that begin in the past.
const LOG_LENGTH: usize = 50_000;

/// Name of an object: plural of its resource, namespace (empty if it has none), name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    pub(super) plural: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ObjectKey {
    pub(super) fn new(plural: &'static str, namespace: &str, name: &str) -> Self {
        Self { plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    pub(super) fn pod(namespace: &str, name: &str) -> Self {
        Self::new("pods", namespace, name)
    }
}

/// A change of an object.
#[derive(Debug, Clone)]
pub(super) struct ObjectChange {
    pub(super) version: u64,
    pub(super) plural: &'static str,
    pub(super) namespace: String,
    /// The object before the change; `None` if it was created.
    pub(super) before: Option<Arc<Value>>,
    /// The object after the change; of a removed object its last state with a new version.
    pub(super) object: Arc<Value>,
    pub(super) removed: bool,
}

/// The objects.
#[derive(Debug)]
pub(super) struct Objects {
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    log: VecDeque<ObjectChange>,
    version: u64,
    /// Watches and continued lists that begin before this version are expired.
    oldest: u64,
    created: u64,
}

impl Objects {
    pub(super) fn new() -> Self {
        // Real versions do not begin at 1, and clients must not assume it.
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            version: 1000,
            oldest: 1000,
            created: 0,
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Forgets all changes so far, as a compaction of etcd does.
    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.log.clear();
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    pub(super) fn find(&self, key: &ObjectKey) -> Result<Arc<Value>, ApiError> {
        self.objects.get(key).cloned().ok_or_else(|| {
            ApiError::not_found(key.plural, ResourceType::named(key.plural).group, &key.name)
        })
    }

    /// Objects of a resource in a namespace, or in all if it is `None`.
    pub(super) fn list<'a>(
        &'a self,
        plural: &'static str,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Value>)> {
        let first = ObjectKey::new(plural, namespace.unwrap_or_default(), "");
        self.objects.range(first..).take_while(move |(key, _)| {
            key.plural == plural && namespace.is_none_or(|namespace| key.namespace == namespace)
        })
    }

    /// Changes after a version, oldest first.
    pub(super) fn changes_after(&self, version: u64) -> impl Iterator<Item = &ObjectChange> {
        let first = self.log.partition_point(|change| change.version <= version);
        self.log.range(first..)
    }

    /// Stores a new object. Sets name (from `generateName`), uid and creation time.
    pub(super) fn create(
        &mut self,
        resource: &'static ResourceType,
        namespace: &str,
        mut object: Value,
    ) -> Result<Arc<Value>, ApiError> {
        self.created += 1;
        let uid = uid(self.created);
        let metadata = &mut object["metadata"];
        if metadata["name"].as_str().is_none_or(str::is_empty)
            && let Some(prefix) = metadata["generateName"].as_str()
        {
            metadata["name"] = format!("{prefix}{}", &uid[..5]).into();
        }
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        metadata["uid"] = uid.into();
        metadata["creationTimestamp"] = now().into();
        if resource.namespaced {
            metadata["namespace"] = namespace.into();
        }
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let key = ObjectKey::new(resource.plural, namespace, &name);
        if self.objects.contains_key(&key) {
            return Err(ApiError::already_exists(resource.plural, resource.group, &name));
        }
        Ok(self.store(key, object, None))
    }

    /// Changes an object. An object that stays as it is gets no new version.
    pub(super) fn update(
        &mut self,
        key: &ObjectKey,
        change: impl FnOnce(&mut Value),
    ) -> Option<Arc<Value>> {
        let before = Arc::clone(self.objects.get(key)?);
        let mut object = Value::clone(&before);
        change(&mut object);
        if object == *before {
            return Some(before);
        }
        Some(self.store(key.clone(), object, Some(before)))
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        let mut object = Value::clone(&before);
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        self.log(key, Some(before), &object, true);
        Some(object)
    }

    fn store(
        &mut self,
        key: ObjectKey,
        mut object: Value,
        before: Option<Arc<Value>>,
    ) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        self.log(&key, before, &object, false);
        self.objects.insert(key, Arc::clone(&object));
        object
    }

    fn log(
        &mut self,
        key: &ObjectKey,
        before: Option<Arc<Value>>,
        object: &Arc<Value>,
        removed: bool,
    ) {
        self.log.push_back(ObjectChange {
            version: self.version,
            plural: key.plural,
            namespace: key.namespace.clone(),
            before,
            object: Arc::clone(object),
            removed,
        });
        if self.log.len() > LOG_LENGTH
            && let Some(dropped) = self.log.pop_front()
        {
            self.oldest = dropped.version;
        }
    }
}

/// The time now, as the API writes it.
pub(super) fn now() -> String {
    let now = jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A list object.
pub(super) fn list_object(resource: &ResourceType, version: u64, items: &[Arc<Value>]) -> Value {
    let items: Vec<Value> = items
        .iter()
        .map(|item| {
            let mut item = Value::clone(item);
            // Items of a list carry no type of their own.
            if let Some(fields) = item.as_object_mut() {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            item
        })
        .collect();
    json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
        "metadata": {"resourceVersion": version.to_string()}, "items": items,
    })
}

fn uid(number: u64) -> String {
    let random: u64 = rand::random();
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{number:012x}",
        (random >> 32) as u32,
        (random >> 16) as u16,
        random & 0xfff,
        (random >> 12) & 0xfff,
    )
}
