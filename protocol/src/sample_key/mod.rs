//! Keys of the samples of a farm.

mod group_id;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::ItemId;

pub use group_id::{GroupId, InvalidGroupId};

/// The key of a sample. A sample that replaces a lost one has the next generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SampleKey {
    /// The farm.
    pub farm: String,
    /// The group.
    pub group: GroupId,
    /// Position in the group, from 0.
    pub index: u32,
    /// Generation, from 1.
    pub generation: u32,
}

impl SampleKey {
    /// The sample's item.
    pub fn item(&self) -> ItemId {
        ItemId::for_rollout(&self.farm, self.group.as_str(), self.index, self.generation)
    }
}

impl fmt::Display for SampleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { farm, group, index, generation } = self;
        write!(f, "{farm}/{group}/{index}.{generation}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_key_names_farm_group_index_and_generation() {
        let group = "g".parse().expect("an id");
        let key = SampleKey { farm: "f".to_owned(), group, index: 2, generation: 1 };
        assert_eq!(key.to_string(), "f/g/2.1");
        let next = SampleKey { generation: 2, ..key.clone() };
        assert_ne!(key.item(), next.item());
    }
}
