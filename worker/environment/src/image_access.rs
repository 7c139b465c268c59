//! Rules for the images that an engine may fetch for a task, and for what its builds may. A server checks
//! the files of tasks by them, and a worker what `docker compose` made of these files.

use std::fmt;
use std::net::IpAddr;
use std::sync::LazyLock;

use regex::Regex;
use rollout_protocol::spec::environment::DockerSettings;
use rollout_protocol::spec::task::HostRule;

use super::dockerfile::{BuildFetch, BuildFetchKind};
use super::image_reference::{self, ImageReference};
use crate::egress::{AllowedHosts, HostTarget};

/// Names of the registry of references that name none.
const DEFAULT_REGISTRIES: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// Namespace of the images that this program makes in an engine.
const OWN_NAMESPACE: &str = "rollout";

/// Names before a colon with which some builders take an image from a store or from a file, not from a registry.
const TRANSPORTS: [&str; 10] = [
    "atomic",
    "containers-storage",
    "dir",
    "docker-archive",
    "docker-daemon",
    "oci",
    "oci-archive",
    "ostree",
    "sif",
    "tarball",
];

/// Port of registries that name none.
const DEFAULT_PORT: u16 = 443;

/// The frontends that do only what a Dockerfile says, and read it as this program does: those of today, and
/// releases since 1.2. A digest does not tell.
static STANDARD_FRONTEND: LazyLock<Regex> = LazyLock::new(|| {
    let release = r"1\.(?:[2-9]|[1-9][0-9]+)(?:\.[0-9]+)?";
    let tag = format!("latest|labs|(?:1|{release})(?:-labs)?");
    Regex::new(&format!(r"^(?:docker\.io/)?docker/dockerfile(?::(?:{tag}))?$")).expect("a pattern")
});

/// The registries whose images a job may use, and what its image builds may fetch: an engine fetches
/// both in the network of its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageAccess {
    /// Everything. Only for documents of the user who started this program.
    Everything,
    /// Images of public registries and of listed ones. Builds fetch nothing else themselves.
    Guarded(AllowedHosts),
}

/// Why an image may not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRefusal {
    text: String,
    is_unresolved: bool,
}

/// Why a build may not fetch something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRefusal {
    /// The instruction or directive; empty for an image.
    pub key: String,
    /// The reason.
    pub refusal: ImageRefusal,
    /// The form to write instead, if that is not another image alone.
    pub expected: Option<&'static str>,
}

impl fmt::Display for BuildRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refusal = &self.refusal;
        match self.expected {
            Some(expected) => write!(f, "{refusal}; expected {expected}"),
            None => write!(f, "{refusal}"),
        }
    }
}

impl ImageRefusal {
    const fn new(text: String) -> Self {
        Self { text, is_unresolved: false }
    }

    /// Whether the name of the registry had no address: it may have one later.
    pub const fn is_unresolved(&self) -> bool {
        self.is_unresolved
    }
}

impl fmt::Display for ImageRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Default for ImageAccess {
    fn default() -> Self {
        Self::Guarded(AllowedHosts::public(Vec::new()))
    }
}

impl ImageAccess {
    /// The access of the environments with these settings.
    pub fn of_docker(settings: &DockerSettings) -> Self {
        match settings.guards_builds {
            true => Self::Guarded(AllowedHosts::public(settings.allowed_registries.clone())),
            false => Self::Everything,
        }
    }

    /// The registries that are listed; `None` if everything may be used.
    pub fn listed(&self) -> Option<&[HostRule]> {
        match self {
            Self::Everything => None,
            Self::Guarded(hosts) => Some(hosts.rules()),
        }
    }

    /// Why an image may not be used; `None` if it may. `look_up` finds the addresses of the name of a
    /// registry, or tells why it does not.
    pub fn refusal(
        &self,
        reference: &str,
        look_up: impl FnOnce(&str) -> Result<Vec<IpAddr>, &'static str>,
    ) -> Option<ImageRefusal> {
        if *self == Self::Everything {
            return None;
        }
        // With a variable it is the worker that knows the name.
        match reference.parse::<ImageReference>() {
            Err(error) if !reference.contains('$') => Some(ImageRefusal::new(error.to_string())),
            Ok(_) | Err(_) => self.refusal_of_registry(reference, look_up),
        }
    }

    fn refusal_of_registry(
        &self,
        reference: &str,
        look_up: impl FnOnce(&str) -> Result<Vec<IpAddr>, &'static str>,
    ) -> Option<ImageRefusal> {
        let Self::Guarded(hosts) = self else { return None };
        let Some(registry) = registry(reference) else {
            return refusal_of_local(reference).map(ImageRefusal::new);
        };
        let text = |why: &str| format!("an image of the registry `{registry}`, {why}");
        let refused = |why: &str| Some(ImageRefusal::new(text(why)));
        if registry.contains('$') {
            return refused("which depends on a variable");
        }
        let Some((host, port)) = host(registry) else { return refused("which is no host") };
        if hosts.lists(host, port) {
            return None;
        }
        if TRANSPORTS.contains(&host) {
            return refused("which is a store or a file for some builders");
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
        if found.is_empty() {
            return Some(ImageRefusal { text: text(INTERNAL), is_unresolved: true });
        }
        // The engine looks the name up itself, and may connect to any of its addresses.
        let count = found.len();
        match hosts.check_addresses(&name, found, port) {
            Ok(allowed) if allowed.len() == count => None,
            Ok(_) | Err(_) => refused(INTERNAL),
        }
    }

    /// Why a build may not fetch something; `None` if it may. `look_up` is that of
    /// [`ImageAccess::refusal`].
    pub fn build_refusal(
        &self,
        fetch: &BuildFetch,
        look_up: impl FnOnce(&str) -> Result<Vec<IpAddr>, &'static str>,
    ) -> Option<BuildRefusal> {
        let source = fetch.source.as_str();
        let (key, found, expected) = match fetch.kind {
            _ if *self == Self::Everything => return None,
            BuildFetchKind::Image => {
                // Arguments without a value are empty in the name: it may be no whole reference.
                let is_none = image_reference::leaves_its_place(source) || source.contains("://");
                let refusal = match is_none {
                    true => {
                        ImageRefusal::new(format!("the image `{source}`, which is no reference"))
                    }
                    false => self.refusal_of_registry(source, look_up)?,
                };
                let expected = is_image_id(source).then_some(EARLIER_STAGE);
                return Some(BuildRefusal { key: String::new(), refusal, expected });
            }
            BuildFetchKind::Frontend
                if STANDARD_FRONTEND.is_match(source) || self.lists(source) =>
            {
                return None;
            }
            BuildFetchKind::Frontend => (
                "syntax",
                format!("the frontend `{source}`, which may fetch anything"),
                "`# syntax=docker/dockerfile:1`, a release of it since `1.2`, or none",
            ),
            BuildFetchKind::Unclear(form) => {
                let found = match fetch.written.as_str() {
                    "" => form.found().to_owned(),
                    written => format!("`{written}`, {}", form.found()),
                };
                let found = format!("{found}, which builders read in different ways");
                (source, found, form.expected())
            }
            BuildFetchKind::Address => (
                "ADD",
                format!("the source `{source}`, which the engine would fetch"),
                "a file of the task; `./` before a path that begins with a variable",
            ),
        };
        let refusal = ImageRefusal::new(found);
        Some(BuildRefusal { key: key.to_owned(), refusal, expected: Some(expected) })
    }

    /// Whether the registry of an image is listed by name or address.
    fn lists(&self, reference: &str) -> bool {
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

/// The form to write instead of a name that may be meant for a stage. Some builders know no stage by another
/// case of its name.
const EARLIER_STAGE: &str = "an image of another name, or an earlier stage by a name of its own, in the case of \
                             its `AS`";

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
    if reference.split_once(':').is_some_and(|(before, _)| TRANSPORTS.contains(&before)) {
        return Some(format!("the image `{reference}`, which some builders take from no registry"));
    }
    if first.contains('$') {
        return Some(format!("the image `{reference}`, whose name depends on a variable"));
    }
    if path.contains('/') && first.eq_ignore_ascii_case(OWN_NAMESPACE) {
        return Some(format!("the image `{reference}`, which may hold the files of other runs"));
    }
    let id = reference.split('@').next().unwrap_or_default();
    let is_digest = id.to_ascii_lowercase().starts_with("sha256:");
    (is_digest || is_image_id(id))
        .then(|| format!("the image `{reference}`, which may be the id of any image of an engine"))
}

/// Whether a name may be the beginning of the id of an image.
fn is_image_id(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_hexdigit())
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
    use crate::dockerfile::build_fetches;

    fn refusal(access: &ImageAccess, image: &str) -> Option<ImageRefusal> {
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
        for image in [
            "a/../127.0.0.1:18901/x",
            "docker.io/../127.0.0.1:18901/x",
            "a/../../events?x=1#b",
            "a/../../info#",
        ] {
            let refused = refusal(&access, image).map(|why| why.to_string());
            assert!(refused.is_some_and(|why| why.contains("no reference")), "{image}");
        }
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
            "containers-storage:ada",
            "docker-daemon:a:1",
            "oci-archive:x",
            "docker.io/${X}",
            "docker.io/ro${E}llout/x",
            "index.docker.io/$X:1",
        ] {
            assert!(refusal(&access, image).is_some(), "{image}");
            assert_eq!(refusal(&ImageAccess::Everything, image), None, "{image}");
        }
        for image in [
            "rollout",
            "rollouts/task",
            "a/rollout",
            "ada:1",
            "docker:dind",
            "library/a:$V",
            "8.8.8.8/rollout/x",
        ] {
            assert_eq!(refusal(&access, image), None, "{image}");
        }
    }

    #[test]
    fn registry_that_is_not_looked_up_is_refused() {
        let access = ImageAccess::default();
        let refused = access.refusal("h.example/x", |_name| Err("which is unknown"));
        let refused = refused.map(|why| (why.to_string(), why.is_unresolved()));
        let text = "an image of the registry `h.example`, which is unknown".to_owned();
        assert_eq!(refused, Some((text, false)));
        let public = |_name: &str| Ok(vec![IpAddr::from(Ipv4Addr::new(8, 8, 8, 8))]);
        assert_eq!(access.refusal("h.example/x", public), None);
    }

    #[test]
    fn image_of_a_store_is_refused_although_its_name_is_that_of_a_public_registry() {
        let access = ImageAccess::default();
        let public = |_name: &str| Ok(vec![IpAddr::from(Ipv4Addr::new(8, 8, 8, 8))]);
        for image in ["oci:80/x", "containers-storage:443/a/b", "docker-daemon:80/x"] {
            assert!(access.refusal(image, public).is_some(), "{image}");
        }
        for image in ["containers-storage:443/a/b", "docker://10.0.0.5/x", "https://h.example/x"] {
            let text = format!("FROM debian\nCOPY --from={image} /a /b\n");
            let found = build_fetches(&text, &std::collections::BTreeMap::new());
            let refused = |fetch: &BuildFetch| access.build_refusal(fetch, public).is_some();
            assert!(found.iter().any(refused), "{image}: {found:?}");
        }
    }

    #[test]
    fn registry_without_an_address_is_told_from_one_of_a_private_network() {
        let access = ImageAccess::default();
        let refused = |found: &[IpAddr]| {
            let refusal = access.refusal("h.example/x", |_name| Ok(found.to_vec()));
            let refusal = refusal.expect("refused");
            (refusal.to_string(), refusal.is_unresolved())
        };
        let (absent, private) = (refused(&[]), refused(&[Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(absent.0, private.0, "users learn no names of private networks");
        assert_eq!((absent.1, private.1), (true, false));
        let addresses = [[8, 8, 8, 8], [10, 0, 0, 1]].map(IpAddr::from);
        let mixed = refused(&addresses);
        assert_eq!(mixed, private, "an engine may connect to any of the addresses");
    }

    #[test]
    fn build_fetches_images_of_public_registries_and_listed_frontends() {
        let rules = vec!["h:5000".parse().expect("a rule")];
        let settings = DockerSettings {
            guards_builds: true,
            allowed_registries: rules.clone(),
            ..DockerSettings::default()
        };
        let listed = ImageAccess::of_docker(&settings);
        assert_eq!(listed.listed(), Some(&*rules));
        let everything = ImageAccess::of_docker(&DockerSettings::default());
        assert_eq!((&everything, everything.listed()), (&ImageAccess::Everything, None));
        let keys = |access: &ImageAccess, text: &str| {
            let found = build_fetches(text, &std::collections::BTreeMap::new());
            let refused = found
                .iter()
                .filter_map(|fetch| access.build_refusal(fetch, |_name| Err("which is unknown")));
            refused.map(|refused| refused.key).collect::<Vec<_>>()
        };
        let cases: [(&str, &[&str], &[&str]); 8] = [
            ("FROM debian\n", &[], &[]),
            ("FROM a/../127.0.0.1:18901/ptfrom\n", &[""], &[""]),
            ("FROM debian\nCOPY --from=a/../h:5000/y /a /b\n", &[""], &[""]),
            ("# syntax=docker/dockerfile:1 x\nFROM debian\n", &[], &[]),
            ("# syntax=h:5000/f\nFROM debian\n", &["syntax"], &[]),
            ("FROM h:5000/x\n", &[""], &[]),
            ("FROM debian\nADD http://h:5000/x /x\n", &["ADD"], &["ADD"]),
            ("FROM debian\nCOPY --from h:5000/x /a /b\n", &["COPY"], &["COPY"]),
        ];
        for (text, by_default, if_listed) in cases {
            assert_eq!(keys(&ImageAccess::default(), text), by_default, "{text}");
            assert_eq!(keys(&listed, text), if_listed, "{text}");
            assert_eq!(keys(&everything, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn frontend_that_reads_as_this_program_is_standard() {
        for tag in
            ["", ":1", ":latest", ":1-labs", ":labs", ":1.2", ":1.7-labs", ":1.10", ":1.21.0"]
        {
            for name in ["docker/dockerfile", "docker.io/docker/dockerfile"] {
                assert!(STANDARD_FRONTEND.is_match(&format!("{name}{tag}")), "{name}{tag}");
            }
        }
        for other in [
            "docker/dockerfile:1.0",
            "docker/dockerfile:1.1",
            "docker/dockerfile:1.1.7",
            "docker/dockerfile:1.1-experimental",
            "docker/dockerfile:1.02",
            "docker/dockerfile:experimental",
            "docker/dockerfile:master",
            "docker/dockerfile:2",
            "docker/dockerfile:1@sha256:00",
            "docker/dockerfile@sha256:00",
            "docker/dockerfile-upstream:1",
            "docker.io/docker.io/docker/dockerfile:1",
            "h/docker/dockerfile:1",
        ] {
            assert!(!STANDARD_FRONTEND.is_match(other), "{other}");
        }
    }

    #[test]
    fn refusal_of_a_build_says_what_to_write_instead() {
        let access = ImageAccess::default();
        let refusals = |text: &str| {
            let found = build_fetches(text, &std::collections::BTreeMap::new());
            let refused =
                found.iter().filter_map(|one| access.build_refusal(one, |_name| Ok(Vec::new())));
            refused.map(|refused| refused.to_string()).collect::<Vec<_>>()
        };
        for (text, expected) in [
            (
                "# escape=`\nFROM debian\n",
                "`# escape=``, a directive `escape`, which builders read in different ways; expected `\\` as \
                 the escape character, without a directive",
            ),
            (
                "FROM debian\nCOPY --from=$A /a /b\n",
                "`--from=$A`, a source of files that is no plain name, which builders read in different \
                 ways; expected the name of a stage or an image, without variables: `FROM IMAGE AS NAME`, \
                 then `--from=NAME`",
            ),
            (
                "FROM debian\nCOPY\u{a0}a /b\n",
                "`\\u{a0}`, an instruction or flag with other characters than ASCII, which builders read \
                 in different ways; expected ASCII, with spaces between instruction, flags and arguments",
            ),
            (
                "FROM debian\nADD $A /x\n",
                "the source `$A`, which the engine would fetch; expected a file of the task; `./` before \
                 a path that begins with a variable",
            ),
            (
                "# syntax=a/b\nFROM debian\n",
                "the frontend `a/b`, which may fetch anything; expected `# syntax=docker/dockerfile:1`, \
                 a release of it since `1.2`, or none",
            ),
            (
                "FROM debian AS Ada\nFROM debian\nCOPY --from=ada /a /b\n",
                "the image `ada`, which may be the id of any image of an engine; expected an image of \
                 another name, or an earlier stage by a name of its own, in the case of its `AS`",
            ),
            ("FROM rollout/x\n", "the image `rollout/x`, which may hold the files of other runs"),
        ] {
            let found = refusals(text);
            assert!(found.iter().any(|text| text == expected), "{text}: {found:?}");
        }
    }
}
