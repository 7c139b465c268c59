//! Removal of settled items that nothing refers to any more.

use rollout_protocol::id::ItemId;

use super::Core;

impl Core {
    /// Forgets settled items. Later messages about them are ignored, as those about items that the
    /// run never had. No record says so: after a replay they are there again.
    pub fn forget(&mut self, items: impl IntoIterator<Item = ItemId>) {
        for item in items {
            let Some(row) = self.items.get(&item).filter(|row| row.is_settled()) else { continue };
            if row.ordinal.is_some() {
                self.settled -= 1;
            }
            self.items.remove(&item);
        }
    }

    /// The settled items that no plan names.
    pub fn unplanned_settled(&self) -> Vec<ItemId> {
        let unplanned = |row: &super::ItemEntry| row.is_settled() && row.ordinal.is_none();
        self.items.iter().filter(|(_, row)| unplanned(row)).map(|(item, _)| *item).collect()
    }
}
