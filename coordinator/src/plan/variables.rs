//! Host variables that templates of a plan refer to.

use std::collections::BTreeSet;

use rollout_protocol::template::Template;

/// Variables without a default that templates refer to.
pub(crate) fn required<'a>(templates: impl Iterator<Item = &'a Template>) -> BTreeSet<String> {
    templates
        .flat_map(Template::variables)
        .filter_map(|(name, has_default)| (!has_default).then_some(name))
        .collect()
}
