//! The pages of a disk whose cache is volatile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Bytes that a disk writes as a whole.
const PAGE: usize = 4096;

/// The writes after the last flush that are on the disk after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateWrites {
    /// None: the cache is lost.
    Lost,
    /// Each with a probability of one half, page by page and in any order.
    Half {
        /// Chooses the pages.
        seed: u64,
    },
    /// All: the cache was written just in time.
    Kept,
}

/// Every write to a disk, by page. Cheap to clone: the pages are shared.
#[derive(Debug, Clone, Default)]
pub(super) struct PageLog {
    /// Pages that a flush covers.
    durable: HashMap<u64, Arc<[u8]>>,
    /// Versions of pages since the last flush, oldest first. The order makes a seed choose the same.
    late: BTreeMap<u64, Vec<Arc<[u8]>>>,
}

impl PageLog {
    /// Writes to the cache.
    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) {
        let (mut number, mut from) = position(offset);
        while !data.is_empty() {
            let length = data.len().min(PAGE - from);
            let mut page = self.page(number).map_or_else(|| vec![0; PAGE], |page| page.to_vec());
            page[from..from + length].copy_from_slice(&data[..length]);
            self.late.entry(number).or_default().push(page.into());
            (number, from, data) = (number + 1, 0, &data[length..]);
        }
    }

    /// Reads what was written last. Pages that were never written are zeros.
    pub(super) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let (mut number, mut from) = position(offset);
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let part = (length - data.len()).min(PAGE - from);
            match self.page(number) {
                Some(page) => data.extend_from_slice(&page[from..from + part]),
                None => data.resize(data.len() + part, 0),
            }
            (number, from) = (number + 1, 0);
        }
        data
    }

    /// Makes all writes so far durable.
    pub(super) fn flush(&mut self) {
        for (number, versions) in std::mem::take(&mut self.late) {
            self.durable.extend(versions.into_iter().next_back().map(|page| (number, page)));
        }
    }

    /// The disk after a cut.
    pub(super) fn after_cut(mut self, late: LateWrites) -> Self {
        match late {
            LateWrites::Lost => self.late.clear(),
            LateWrites::Half { seed } => {
                let mut random = StdRng::seed_from_u64(seed);
                for versions in self.late.values_mut() {
                    versions.retain(|_| random.random());
                }
            }
            LateWrites::Kept => {}
        }
        self.flush();
        self
    }

    fn page(&self, number: u64) -> Option<&Arc<[u8]>> {
        let late = self.late.get(&number).and_then(|versions| versions.last());
        late.or_else(|| self.durable.get(&number))
    }
}

/// The number of the page at an offset, and the place in it.
fn position(offset: u64) -> (u64, usize) {
    let size = PAGE as u64;
    (offset / size, usize::try_from(offset % size).expect("less than a page"))
}
