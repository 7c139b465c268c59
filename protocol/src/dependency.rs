//! The services that executions need.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A service without which an execution cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependency {
    /// The engine that runs containers.
    ContainerEngine,
    /// The registry that images are pulled from.
    ImageRegistry,
    /// The store of task files and results.
    BlobStore,
    /// A model server behind the gateway.
    ModelServer,
}

impl Dependency {
    /// Every service.
    pub const ALL: [Self; 4] =
        [Self::ContainerEngine, Self::ImageRegistry, Self::BlobStore, Self::ModelServer];

    /// The name used in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ContainerEngine => "container_engine",
            Self::ImageRegistry => "image_registry",
            Self::BlobStore => "blob_store",
            Self::ModelServer => "model_server",
        }
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ContainerEngine => "the container engine",
            Self::ImageRegistry => "the image registry",
            Self::BlobStore => "the blob store",
            Self::ModelServer => "the model server",
        })
    }
}
