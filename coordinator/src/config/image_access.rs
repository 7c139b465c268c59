//! The registries whose images a job may use.

use std::net::IpAddr;

use rollout_worker::egress::{AllowedHosts, HostTarget};

/// Names of the registry of references that name none.
const DEFAULT_REGISTRIES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Namespace of the images that this program makes in an engine.
const OWN_NAMESPACE: &str = "rollout";

/// Port of registries that name none.
const DEFAULT_PORT: u16 = 443;

/// The registries whose images a job may use, and what its image builds may fetch: an engine fetches
/// both in the network of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageAccess {
    /// Everything. Only for documents of the user who started this program.
    Everything,
    /// Images of public registries and of listed ones. Builds fetch nothing else themselves.
    Guarded(AllowedHosts),
}

impl Default for ImageAccess {
    fn default() -> Self {
        Self::Guarded(AllowedHosts::public(Vec::new()))
    }
}

impl ImageAccess {
    /// Why an image may not be used; `None` if it may. `look_up` finds the addresses of the name of a
    /// registry, or tells why it does not.
    pub(crate) fn refusal(
        &self,
        reference: &str,
        look_up: impl FnOnce(&str) -> Result<Vec<IpAddr>, &'static str>,
    ) -> Option<String> {
        let Self::Guarded(hosts) = self else { return None };
        let Some(registry) = registry(reference) else { return refusal_of_local(reference) };
        let refused = |why: &str| Some(format!("an image of the registry `{registry}`, {why}"));
        if registry.contains('$') {
            return refused("which depends on a variable");
        }
        let Some((host, port)) = host(registry) else { return refused("which is no host") };
        if hosts.lists(host, port) {
            return None;
        }
        let name = match hosts.check_host(host, port) {
            Ok(HostTarget::Address(_)) => return None,
            Ok(HostTarget::Name(name)) => name,
            Err(_) => return refused(INTERNAL),
        };
        let found = match look_up(&name) {
            Ok(found) => found,
            Err(why) => return refused(why),
        };
        match hosts.check_addresses(&name, found, port) {
            Ok(allowed) if !allowed.is_empty() => None,
            Ok(_) | Err(_) => refused(INTERNAL),
        }
    }

    /// Whether the registry of an image is listed by name or address.
    pub(crate) fn lists(&self, reference: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Guarded(hosts) => registry(reference)
                .and_then(host)
                .is_some_and(|(host, port)| hosts.lists(host, port)),
        }
    }
}

/// The reason of a refused registry. A name that has no address has the same one.
const INTERNAL: &str = "which has no public address";

/// The registry that a reference names; `None` for the default one.
fn registry(reference: &str) -> Option<&str> {
    let (first, _) = match reference.split_once('/') {
        Some(parts) => parts,
        None if reference.contains('$') => return Some(reference),
        None => return None,
    };
    // Repositories of the default registry have no upper case.
    let is_registry = first.contains(['.', ':', '$'])
        || first.eq_ignore_ascii_case("localhost")
        || first.chars().any(|c| c.is_ascii_uppercase());
    (is_registry && !is_default(first)).then_some(first)
}

/// Why an image of the default registry may not be used: an engine that has an image of that name, or
/// with that id, does not ask the registry.
fn refusal_of_local(reference: &str) -> Option<String> {
    let path = match reference.split_once('/') {
        Some((first, path)) if is_default(first) => path,
        _ => reference,
    };
    let (first, _) = path.split_once('/').unwrap_or((path, ""));
    if first.contains('$') {
        return Some(format!("the image `{reference}`, whose name depends on a variable"));
    }
    if path.contains('/') && first.eq_ignore_ascii_case(OWN_NAMESPACE) {
        return Some(format!("the image `{reference}`, which may hold the files of other runs"));
    }
    let id = reference.split('@').next().unwrap_or_default();
    let is_digest = id.to_ascii_lowercase().starts_with("sha256:");
    let is_id = is_digest || (!id.is_empty() && id.chars().all(|c| c.is_ascii_hexdigit()));
    is_id.then(|| format!("the image `{reference}`, which may be the id of any image of an engine"))
}

fn is_default(registry: &str) -> bool {
    DEFAULT_REGISTRIES.contains(&registry.to_ascii_lowercase().as_str())
}

/// The host, without brackets, and the port of a registry.
fn host(registry: &str) -> Option<(&str, u16)> {
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => registry.split_once(':').unwrap_or((registry, "")),
    };
    let port = if port.is_empty() { DEFAULT_PORT } else { port.parse().ok()? };
    (!host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, ToSocketAddrs as _};

    use super::*;

    fn refusal(access: &ImageAccess, image: &str) -> Option<String> {
        access.refusal(image, |name| {
            let found = (name, 0).to_socket_addrs();
            Ok(found.into_iter().flatten().map(|address| address.ip()).collect())
        })
    }

    #[test]
    fn image_of_a_registry_that_is_not_public_is_refused_unless_listed() {
        let access = ImageAccess::default();
        for image in
            ["debian", "debian:12", "library/debian@sha256:0", "docker.io/a/b", "8.8.8.8/a"]
        {
            assert_eq!(refusal(&access, image), None, "{image}");
        }
        let hosts = ["127.0.0.1:5000", "localhost", "[::1]", "10.0.0.1:80", "0x7f.1:80"];
        for host in hosts.into_iter().chain(["127.1", "$REG", "${REG:-h}", "a.invalid", "INNER"]) {
            let image = format!("{host}/a:1");
            assert!(refusal(&access, &image).is_some(), "{image}");
            assert_eq!(refusal(&ImageAccess::Everything, &image), None, "{image}");
        }
        assert!(refusal(&access, "$IMAGE").is_some());
        let rules =
            ["127.0.0.1:5000", "localhost", "::1"].map(|rule| rule.parse().expect("a rule"));
        let listed = ImageAccess::Guarded(AllowedHosts::public(rules.to_vec()));
        for image in ["127.0.0.1:5000/a", "localhost/a", "localhost:80/a", "[::1]/a"] {
            assert_eq!(refusal(&listed, image), None, "{image}");
            assert!(listed.lists(image) && !access.lists(image), "{image}");
        }
        assert!(refusal(&listed, "127.0.0.1:5001/a").is_some());
    }

    #[test]
    fn image_that_an_engine_may_have_of_another_run_is_refused() {
        let access = ImageAccess::default();
        for image in [
            "rollout/task:0123456789abcdef",
            "docker.io/rollout/task:1",
            "INDEX.docker.io/Rollout/main",
            "rollout/main@sha256:00",
            "sha256:0123456789abcdef",
            "0123456789ab",
            "ada",
            "docker.io/${X}",
            "docker.io/ro${E}llout/x",
            "index.docker.io/$X:1",
        ] {
            assert!(refusal(&access, image).is_some(), "{image}");
            assert_eq!(refusal(&ImageAccess::Everything, image), None, "{image}");
        }
        for image in
            ["rollout", "rollouts/task", "a/rollout", "ada:1", "library/a:$V", "8.8.8.8/rollout/x"]
        {
            assert_eq!(refusal(&access, image), None, "{image}");
        }
    }

    #[test]
    fn registry_that_is_not_looked_up_is_refused() {
        let access = ImageAccess::default();
        let refused = access.refusal("h.example/x", |_name| Err("which is unknown"));
        assert!(refused.is_some_and(|why| why.ends_with("`h.example`, which is unknown")));
        let public = |_name: &str| Ok(vec![IpAddr::from(Ipv4Addr::new(8, 8, 8, 8))]);
        assert_eq!(access.refusal("h.example/x", public), None);
    }
}
