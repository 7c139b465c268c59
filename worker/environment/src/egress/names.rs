//! Addresses that stand for names in an environment whose connections lead to this process.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::led::LedNetwork;

/// Most names of an environment.
const MAX_NAMES: u32 = 4096;

/// The names of one environment, and their addresses.
#[derive(Debug, Default)]
pub(super) struct NameAddresses(Mutex<NameMaps>);

#[derive(Debug, Default)]
struct NameMaps {
    by_name: HashMap<String, Ipv4Addr>,
    by_address: HashMap<Ipv4Addr, String>,
}

impl NameAddresses {
    fn maps(&self) -> MutexGuard<'_, NameMaps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that stands for a name; `None` if there are too many names.
    pub(super) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        let mut maps = self.maps();
        if let Some(address) = maps.by_name.get(name) {
            return Some(*address);
        }
        let number = u32::try_from(maps.by_name.len()).ok().filter(|number| *number < MAX_NAMES)?;
        let address = Ipv4Addr::from_bits(LedNetwork::NAMES.address.to_bits() + 1 + number);
        maps.by_name.insert(name.to_owned(), address);
        maps.by_address.insert(address, name.to_owned());
        Some(address)
    }

    /// The name that an address stands for.
    pub(super) fn name_of(&self, address: Ipv4Addr) -> Option<String> {
        self.maps().by_address.get(&address).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_one_address_that_no_other_has() {
        let names = NameAddresses::default();
        let first = names.address_of("a.example").expect("room");
        let second = names.address_of("b.example").expect("room");
        assert_ne!(first, second);
        assert_eq!(names.address_of("a.example"), Some(first));
        assert_eq!(names.name_of(second).as_deref(), Some("b.example"));
        assert_eq!(names.name_of(Ipv4Addr::new(198, 18, 9, 9)), None);
        assert_eq!(first.octets()[..2], [198, 18]);
    }
}
