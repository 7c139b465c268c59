//! Places in compose files. Some keys are words of the format, others are names that the file chooses.

/// Maps whose keys are names and whose values are texts.
const TEXT_MAPS: [&str; 4] = ["environment", "labels", "args", "annotations"];

/// The place of a map in a compose file. It does not depend on names: a service or a network may be
/// called `services` or `labels`, and names may contain dots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComposePlace {
    /// The whole file.
    Top,
    /// The services of the file by name.
    Services,
    /// The networks of the file by name.
    Networks,
    /// One of these networks.
    Network,
    /// One of the services.
    Service,
    /// Any other place, such as a build.
    Other,
}

impl ComposePlace {
    /// The place of the value of a key.
    #[must_use]
    pub fn of_value(self, key: &str) -> Self {
        match (self, key) {
            // A map that is merged into another one has the same place.
            (_, "<<") => self,
            (Self::Top, "services") => Self::Services,
            (Self::Top, "networks") => Self::Networks,
            (Self::Networks, _) => Self::Network,
            (Self::Services, _) => Self::Service,
            (Self::Top | Self::Network | Self::Service | Self::Other, _) => Self::Other,
        }
    }

    /// Whether the value of a key is a map of texts, in which no key has a meaning.
    #[must_use]
    pub fn has_texts(self, key: &str) -> bool {
        !self.has_names() && TEXT_MAPS.contains(&key)
    }

    /// Whether its keys are names that the file chooses.
    #[must_use]
    pub fn has_names(self) -> bool {
        matches!(self, Self::Services | Self::Networks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The place at the end of a path.
    fn place(path: &[&str]) -> ComposePlace {
        path.iter().fold(ComposePlace::Top, |place, key| place.of_value(key))
    }

    #[test]
    fn place_depends_on_no_name() {
        for name in ["n", "services", "networks", "a.services", "labels", "<<x"] {
            assert_eq!(place(&["networks", name]), ComposePlace::Network, "{name}");
            assert_eq!(place(&["services", name]), ComposePlace::Service, "{name}");
            assert_eq!(place(&["services", name, "networks"]), ComposePlace::Other, "{name}");
            assert_eq!(place(&["x-part", name]), ComposePlace::Other, "{name}");
        }
        assert_eq!(place(&["<<", "services", "<<"]), ComposePlace::Services);
        assert_eq!(place(&["networks", "<<", "n", "<<"]), ComposePlace::Network);
        assert_eq!(place(&["services", "<<", "s", "<<"]), ComposePlace::Service);
    }

    #[test]
    fn texts_are_in_maps_that_are_no_names() {
        assert!(place(&["services", "labels"]).has_texts("labels"));
        assert!(place(&["networks", "n"]).has_texts("labels"));
        assert!(!place(&["services"]).has_texts("labels"));
        assert!(!place(&["networks", "<<"]).has_texts("environment"));
        assert!(!place(&["services", "main"]).has_texts("networks"));
    }
}
