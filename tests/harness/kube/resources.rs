//! Resources that the double serves, and their discovery documents.

use serde_json::{Value, json};

/// A resource type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResourceType {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    short: &'static [&'static str],
    pub(super) namespaced: bool,
    subresources: &'static [&'static str],
}

const fn core(
    plural: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    subresources: &'static [&'static str],
) -> ResourceType {
    ResourceType { group: "", version: "v1", plural, kind, short, namespaced, subresources }
}

const fn grouped(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
) -> ResourceType {
    let subresources = &["status"];
    ResourceType { group, version: "v1", plural, kind, short, namespaced: true, subresources }
}

/// Subresources of pods.
const POD_SUBRESOURCES: &[&str] = &["status", "exec", "log", "eviction"];

/// Every resource type.
pub(super) static RESOURCE_TYPES: [ResourceType; 11] = [
    core("pods", "Pod", &["po"], true, POD_SUBRESOURCES),
    core("namespaces", "Namespace", &["ns"], false, &["status"]),
    core("nodes", "Node", &["no"], false, &["status"]),
    core("events", "Event", &["ev"], true, &[]),
    core("secrets", "Secret", &[], true, &[]),
    core("configmaps", "ConfigMap", &["cm"], true, &[]),
    core("serviceaccounts", "ServiceAccount", &["sa"], true, &[]),
    core("resourcequotas", "ResourceQuota", &["quota"], true, &["status"]),
    grouped("networking.k8s.io", "networkpolicies", "NetworkPolicy", &["netpol"]),
    grouped("batch", "jobs", "Job", &[]),
    grouped("coordination.k8s.io", "leases", "Lease", &[]),
];

/// Groups beside the core group, with a name for each of their versions.
const GROUPS: [&str; 4] =
    ["networking.k8s.io", "batch", "coordination.k8s.io", "authorization.k8s.io"];

impl ResourceType {
    pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCE_TYPES.iter().find(|resource| {
            resource.group == group && resource.version == version && resource.plural == plural
        })
    }

    /// The resource type with a plural; plurals are unique here.
    pub(super) fn named(plural: &str) -> &'static Self {
        RESOURCE_TYPES.iter().find(|resource| resource.plural == plural).expect("a known plural")
    }

    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    fn to_discovery(&self) -> Vec<Value> {
        let verbs =
            ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let mut entries = vec![json!({
            "name": self.plural, "singularName": self.kind.to_lowercase(), "kind": self.kind,
            "namespaced": self.namespaced, "verbs": verbs, "shortNames": self.short,
        })];
        for subresource in self.subresources {
            let (kind, verbs) = match *subresource {
                "exec" => ("PodExecOptions", &["create", "get"][..]),
                "eviction" => ("Eviction", &["create"][..]),
                "log" => (self.kind, &["get"][..]),
                _ => (self.kind, &["get", "patch", "update"][..]),
            };
            entries.push(json!({
                "name": format!("{}/{subresource}", self.plural), "singularName": "",
                "kind": kind, "namespaced": self.namespaced, "verbs": verbs,
            }));
        }
        entries
    }
}

/// The document at a path outside of resources, if there is one.
pub(super) fn document(segments: &[&str]) -> Option<Value> {
    match segments {
        ["version"] => Some(json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2025-09-09T19:44:50Z", "goVersion": "go1.24.6", "compiler": "gc",
            "platform": "linux/amd64",
        })),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [],
        })),
        ["apis"] => {
            let groups: Vec<Value> = GROUPS.iter().map(|group| api_group(group)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] => GROUPS.contains(group).then(|| api_group(group)),
        ["api", "v1"] => Some(resource_list("", "v1")),
        ["apis", group, "v1"] if GROUPS.contains(group) => {
            Some(resource_list(group, &format!("{group}/v1")))
        }
        ["openapi", "v3"] => Some(openapi_index()),
        ["openapi", "v3", "api", "v1"] => Some(openapi("")),
        ["openapi", "v3", "apis", group, "v1"] if GROUPS.contains(group) => Some(openapi(group)),
        _ => None,
    }
}

fn openapi_index() -> Value {
    let mut paths = json!({"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1"}});
    for group in GROUPS {
        let path = format!("apis/{group}/v1");
        paths[&path] = json!({"serverRelativeURL": format!("/openapi/v3/{path}")});
    }
    json!({"paths": paths})
}

/// The part of a schema from which clients learn that the server validates fields.
fn openapi(group: &str) -> Value {
    let mut paths = json!({});
    for resource in RESOURCE_TYPES.iter().filter(|resource| resource.group == group) {
        let prefix =
            if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        paths[format!("{prefix}{place}/{}/{{name}}", resource.plural)] = json!({"patch": {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-group-version-kind":
                {"group": group, "version": "v1", "kind": resource.kind},
        }});
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.34.1"}, "paths": paths,
        "components": {"schemas": {}},
    })
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [version],
        "preferredVersion": version,
    })
}

fn resource_list(group: &str, group_version: &str) -> Value {
    let mut resources: Vec<Value> = RESOURCE_TYPES
        .iter()
        .filter(|resource| resource.group == group)
        .flat_map(ResourceType::to_discovery)
        .collect();
    if group == "authorization.k8s.io" {
        resources.push(json!({
            "name": "selfsubjectaccessreviews", "singularName": "selfsubjectaccessreview",
            "kind": "SelfSubjectAccessReview", "namespaced": false, "verbs": ["create"],
        }));
    }
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
        "resources": resources,
    })
}
