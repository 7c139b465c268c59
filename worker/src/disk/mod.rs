//! The file systems that executions depend on: whether one was full, and whether there is room for
//! more work.
//!
//! A program in an environment that meets a full disk fails as if it were wrong itself. So the disks
//! are watched while executions run, and a failure during which one was full is this host's.

mod space;

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use self::space::Space;
use crate::environment::Provider;
use crate::supervise;

/// Time between two looks: what fills a disk and is removed within less may go unseen.
const LOOK: Duration = Duration::from_millis(250);

/// Time between two questions to a provider that did not say yet where its environments are.
const ASK: Duration = Duration::from_secs(10);

/// Longest that such a question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Why a directory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Executions write there, or what they leave is kept there: no more work is begun when there
    /// is little room.
    Work,
    /// Something of this process may be there.
    Temporary,
}

/// Watches the disks of a worker. The default watches none.
#[derive(Default)]
pub struct DiskWatch {
    state: Mutex<State>,
    /// Providers that did not say yet where their environments are.
    unasked: Mutex<Vec<Arc<dyn Provider>>>,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    purpose: Use,
    space: Option<Space>,
    /// When it was seen full last.
    full: Option<(Instant, Space)>,
}

impl fmt::Debug for DiskWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskWatch").field(&self.state()).finish()
    }
}

impl DiskWatch {
    /// Watches directories, and those where providers keep their environments.
    pub fn new(
        paths: impl IntoIterator<Item = (PathBuf, Use)>,
        providers: impl IntoIterator<Item = Arc<dyn Provider>>,
    ) -> Self {
        let place = |(path, purpose)| Place { path, purpose, space: None, full: None };
        let places = paths.into_iter().map(place).collect();
        let unasked = Mutex::new(providers.into_iter().collect());
        Self { state: Mutex::new(State { places }), unasked }
    }

    /// Looks at the disks again and again, for ever.
    pub async fn watch(&self) -> Infallible {
        let mut asked: Option<Instant> = None;
        loop {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
                self.ask().await;
                asked = Some(Instant::now());
            }
            if self.state().places.is_empty() {
                tokio::time::sleep(ASK).await;
            } else {
                self.look().await;
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// The disk that was full at `since` or later, if one was, and how full.
    pub async fn full_since(&self, since: Instant) -> Option<String> {
        self.look().await;
        let state = self.state();
        let full = |place: &Place| {
            let (_, space) = place.full.filter(|(at, _)| *at >= since)?;
            Some(format!("the disk of {} was full ({space})", place.path.display()))
        };
        state.places.iter().find_map(full)
    }

    /// The disk on which there is too little room for more work, if there is one.
    pub async fn low(&self) -> Option<String> {
        self.look().await;
        let state = self.state();
        let low = |place: &Place| {
            let space = place.space.filter(|space| space.is_low())?;
            let floor = space.floor_text();
            let path = place.path.display();
            Some(format!("the disk of {path} is nearly full: {space}, at least {floor} is needed"))
        };
        state.places.iter().filter(|place| place.purpose == Use::Work).find_map(low)
    }

    async fn look(&self) {
        let paths: Vec<PathBuf> = self.state().places.iter().map(|p| p.path.clone()).collect();
        if paths.is_empty() {
            return;
        }
        let look = move || paths.iter().map(|path| Space::of(path)).collect::<Vec<_>>();
        let spaces = supervise::blocking(look).await;
        let now = Instant::now();
        for (place, space) in self.state().places.iter_mut().zip(spaces) {
            place.space = space;
            if let Some(space) = space.filter(Space::is_full) {
                place.full = Some((now, space));
            }
        }
    }

    /// Asks providers where their environments are.
    async fn ask(&self) {
        let unasked = std::mem::take(&mut *self.unasked());
        for provider in unasked {
            match tokio::time::timeout(ANSWER_WITHIN, provider.disk()).await {
                Ok(Ok(path)) => self.state().places.extend(path.map(|path| Place {
                    path,
                    purpose: Use::Work,
                    space: None,
                    full: None,
                })),
                Ok(Err(_)) | Err(_) => self.unasked().push(provider),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unasked(&self) -> MutexGuard<'_, Vec<Arc<dyn Provider>>> {
        self.unasked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn disk_with_room_is_neither_full_nor_low() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = [(dir.path().to_owned(), Use::Work), ("/nowhere/at/all".into(), Use::Work)];
        let watch = DiskWatch::new(paths, []);
        let began = Instant::now();
        assert_eq!(watch.full_since(began).await, None);
        assert_eq!(watch.low().await, None);
    }

    #[tokio::test]
    async fn full_disk_counts_for_what_ran_then_and_not_for_what_began_later() {
        let watch = DiskWatch::new([("/nowhere".into(), Use::Temporary)], []);
        let before = Instant::now();
        let space = Space { size: 4 << 20, free: 0, files: 10, free_files: 5 };
        watch.state().places[0].full = Some((Instant::now(), space));
        let found = watch.full_since(before).await.expect("it was full");
        assert_eq!(found, "the disk of /nowhere was full (0 of 4 MiB free)");
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(watch.full_since(Instant::now()).await, None);
        assert_eq!(watch.low().await, None, "a temporary directory holds nothing back");
    }
}
