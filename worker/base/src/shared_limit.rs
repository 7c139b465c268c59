//! A limit that users share. Every user has a part of it at most, so that no user takes all of it, and
//! administrators have a reserve. Free room goes to the user who holds the least, then to the one who
//! was served longest ago. The priority of a request counts among requests of its own user only.
//!
//! A request that waits because others hold too much holds back those of other users behind it, however
//! small they are, except those of administrators. It does so only if it asks for no more than a part
//! of its user, and for [`HOLD_BACK`] in each [`HOLD_BACK_PERIOD`]; and a request is held back for
//! [`HOLD_BACK`] in all at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Smallest limit that has a reserve for administrators.
const SMALLEST_WITH_RESERVE: u64 = 4;

/// The part of a limit that is the reserve: one of this many.
const RESERVE_PARTS: u64 = 8;

/// How often a user may hold what is left for others.
const USER_FACTOR: u64 = 2;

/// Longest time for which a request that waits holds others back at a stretch, and for which one is
/// held back: longer than many places are held, and short for those who wait.
pub const HOLD_BACK: Duration = Duration::from_secs(30);

/// Time from one such stretch of a request to its next. Places that are held for minutes are not free
/// within the first one, and small requests would take their room for ever.
pub const HOLD_BACK_PERIOD: Duration = Duration::from_secs(120);

/// A user of shared limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUser {
    /// Name. Those with the same name are one user.
    pub name: String,
    /// Whether the reserve is for this user, who has no part of one's own.
    pub is_admin: bool,
}

/// How a limit is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitShares {
    total: u64,
    is_whole: bool,
}

impl LimitShares {
    /// A limit of which a user holds at most twice of what is left for others: two thirds if others
    /// hold nothing.
    pub const fn new(total: u64) -> Self {
        Self { total, is_whole: false }
    }

    /// A limit of which a user may take everything that is free: only the order of requests is fair.
    pub const fn whole(total: u64) -> Self {
        Self { total, is_whole: true }
    }

    /// The limit.
    pub const fn total(self) -> u64 {
        self.total
    }

    /// Whether a user who holds `own` may take `amount` more while all users hold `held`.
    pub fn allows(self, is_admin: bool, [own, held]: [u64; 2], amount: u64) -> bool {
        let Some(left) = self.left(is_admin, held.saturating_add(amount)) else { return false };
        own == 0 || self.is_part(is_admin, own.saturating_add(amount), left)
    }

    /// Whether a user may hold an amount in more than one place while others hold nothing.
    fn fits_part(self, is_admin: bool, amount: u64) -> bool {
        let left = self.left(is_admin, amount);
        left.is_some_and(|left| self.is_part(is_admin, amount, left))
    }

    /// Amount that users may still take while all hold `held`; `None` if that is too much already.
    fn left(self, is_admin: bool, held: u64) -> Option<u64> {
        let has_reserve = !is_admin && !self.is_whole && self.total >= SMALLEST_WITH_RESERVE;
        let reserve = if has_reserve { (self.total / RESERVE_PARTS).max(1) } else { 0 };
        (self.total - reserve).checked_sub(held)
    }

    /// Whether an amount is within the part of a user while this much is left.
    const fn is_part(self, is_admin: bool, amount: u64, left: u64) -> bool {
        is_admin || self.is_whole || amount <= left.saturating_mul(USER_FACTOR)
    }
}

/// A limit with its holders and those who wait.
#[derive(Debug)]
pub struct SharedLimit {
    shares: LimitShares,
    state: Mutex<LimitState>,
}

#[derive(Debug, Default)]
struct LimitState {
    held: u64,
    users: HashMap<String, UserPart>,
    /// Number of grants so far.
    grants: u64,
    /// Requests that wait, oldest first.
    waiting: Vec<WaitingRequest>,
}

#[derive(Debug, Clone, Copy, Default)]
struct UserPart {
    held: u64,
    /// Number of the last grant.
    last_grant: u64,
}

#[derive(Debug)]
struct WaitingRequest {
    user: LimitUser,
    priority: i32,
    amount: u64,
    /// How much it holds already.
    present: u64,
    since: Instant,
    granted: oneshot::Sender<SharedPlace>,
}

impl WaitingRequest {
    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether none holds it back any more.
    fn is_late(&self, now: Instant) -> bool {
        self.waited(now) >= HOLD_BACK
    }

    /// Whether it may hold others back at present.
    fn may_hold_back(&self, now: Instant) -> bool {
        self.waited(now).as_millis() % HOLD_BACK_PERIOD.as_millis() < HOLD_BACK.as_millis()
    }
}

/// The wait of a request. If it ends without a place, the requests behind it may be next.
struct LimitWait<'a> {
    limit: &'a Arc<SharedLimit>,
    is_over: bool,
}

impl Drop for LimitWait<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.limit.grant();
        }
    }
}

/// A part of a limit, held until this is dropped.
#[derive(Debug)]
pub struct SharedPlace {
    limit: Arc<SharedLimit>,
    user: LimitUser,
    amount: u64,
}

/// A request that exceeds a limit or the part of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitReached {
    /// How much the user holds.
    pub own: u64,
    /// How much all users hold.
    pub held: u64,
    /// The limit.
    pub total: u64,
}

/// Numbers of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCounts {
    /// How much is free.
    pub free: u64,
    /// How much is held.
    pub held: u64,
    /// Requests that wait.
    pub waiting: u64,
}

impl SharedLimit {
    /// A limit of which nothing is held.
    pub fn new(shares: LimitShares) -> Arc<Self> {
        Arc::new(Self { shares, state: Mutex::default() })
    }

    /// Its numbers.
    pub fn counts(&self) -> LimitCounts {
        let state = self.state();
        LimitCounts {
            free: self.shares.total.saturating_sub(state.held),
            held: state.held,
            waiting: state.waiting.len() as u64,
        }
    }

    /// Takes an amount at once.
    ///
    /// # Errors
    /// The limit is reached, for this user.
    pub fn try_acquire(
        self: &Arc<Self>,
        user: &LimitUser,
        amount: u64,
    ) -> Result<SharedPlace, LimitReached> {
        let mut state = self.state();
        if !state.allows(self.shares, user, amount, 0) {
            let (own, held) = (state.part(&user.name).held, state.held);
            return Err(LimitReached { own, held, total: self.shares.total });
        }
        state.take(&user.name, amount);
        drop(state);
        Ok(SharedPlace { limit: Arc::clone(self), user: user.clone(), amount })
    }

    /// Takes an amount that is in use already, also beyond the limit.
    pub fn hold(self: &Arc<Self>, user: &LimitUser, amount: u64) -> SharedPlace {
        self.state().take(&user.name, amount);
        SharedPlace { limit: Arc::clone(self), user: user.clone(), amount }
    }

    /// Waits for an amount, which must not exceed the limit. Of the requests of a user that wait, the
    /// one with the highest priority is first.
    pub async fn acquire(
        self: &Arc<Self>,
        user: &LimitUser,
        priority: i32,
        amount: u64,
    ) -> SharedPlace {
        self.acquire_more(user, priority, amount, 0).await
    }

    /// Waits for an amount for a request that holds `present` already. That does not count as held by
    /// its user: a request that takes its amount in parts is refused no more than another one.
    pub async fn acquire_more(
        self: &Arc<Self>,
        user: &LimitUser,
        priority: i32,
        amount: u64,
        present: u64,
    ) -> SharedPlace {
        // Declared first: when it is dropped, this request no longer waits.
        let mut wait = LimitWait { limit: self, is_over: false };
        loop {
            let (granted, mut place) = oneshot::channel();
            let (user, since) = (user.clone(), Instant::now());
            let waiting = WaitingRequest { user, priority, amount, present, since, granted };
            self.state().waiting.push(waiting);
            self.grant();
            let mut held_back_until = since + HOLD_BACK;
            let granted = loop {
                if let Ok(granted) = timeout_at(held_back_until, &mut place).await {
                    break granted;
                }
                // Requests behind it may be next.
                self.grant();
                held_back_until += HOLD_BACK_PERIOD;
            };
            // A request that waits is never dropped.
            if let Ok(place) = granted {
                wait.is_over = true;
                return place;
            }
        }
    }

    /// Gives free room to requests that wait. One that no longer waits gives it back.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.state().next_granted(self.shares);
            let Some(WaitingRequest { user, amount, granted, .. }) = next else { return };
            let place = SharedPlace { limit: Arc::clone(self), user, amount };
            // Not dropped here: that grants, too, and many could be given back at once.
            if let Err(mut returned) = granted.send(place) {
                self.state().release(&returned.user.name, returned.amount);
                returned.amount = 0;
            }
        }
    }

    /// Whether a request of a user for this amount in all waits for what the same user holds: that is
    /// most of what is held, and without it there would be room.
    pub fn waits_for_own(&self, user: &LimitUser, amount: u64) -> bool {
        let state = self.state();
        let own = state.part(&user.name).held;
        let others = state.held.saturating_sub(own);
        own > others && self.shares.allows(user.is_admin, [0, others], amount)
    }

    fn state(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LimitState {
    fn part(&self, user: &str) -> UserPart {
        self.users.get(user).copied().unwrap_or_default()
    }

    /// Whether a user may take an amount more for a request that holds `present` already.
    fn allows(&self, shares: LimitShares, user: &LimitUser, amount: u64, present: u64) -> bool {
        let own = self.part(&user.name).held.saturating_sub(present);
        shares.allows(user.is_admin, [own, self.held], amount)
    }

    fn take(&mut self, user: &str, amount: u64) {
        self.grants += 1;
        self.held += amount;
        let part = self.users.entry(user.to_owned()).or_default();
        part.held += amount;
        part.last_grant = self.grants;
    }

    fn release(&mut self, user: &str, amount: u64) {
        self.held -= amount;
        if let Some(part) = self.users.get_mut(user) {
            part.held -= amount;
        }
    }

    /// Takes what the first request asks for that may have it. Forgets requests that no longer wait,
    /// and users who hold nothing if none waits.
    fn next_granted(&mut self, shares: LimitShares) -> Option<WaitingRequest> {
        self.waiting.retain(|waiting| !waiting.granted.is_closed());
        if self.waiting.is_empty() {
            self.users.retain(|_, part| part.held > 0);
        }
        // Thousands may wait for the slots of a server.
        if self.held >= shares.total {
            return None;
        }
        let now = Instant::now();
        let mut is_blocked = false;
        let mut granted = None;
        for at in self.first_of_users() {
            let waiting = &self.waiting[at];
            let WaitingRequest { user, amount, present, .. } = waiting;
            if is_blocked && !user.is_admin && !waiting.is_late(now) {
                continue;
            }
            if self.allows(shares, user, *amount, *present) {
                granted = Some(at);
                break;
            }
            // If only the part of this user is too small, there is room for others. Otherwise small
            // requests of others would take the room that a large one waits for, again and again. But
            // some hold their places for hours, and then it must not stop everyone.
            let wanted = self.part(&user.name).held.saturating_add(*amount);
            if waiting.may_hold_back(now) && shares.fits_part(user.is_admin, wanted) {
                is_blocked = true;
                if user.is_admin {
                    break;
                }
            }
        }
        let granted = self.waiting.remove(granted?);
        self.take(&granted.user.name, granted.amount);
        Some(granted)
    }

    /// Places of the first request of each user who waits, in the order of the users' claims.
    fn first_of_users(&self) -> Vec<usize> {
        let mut first = HashMap::<&str, (usize, usize)>::new();
        for (at, waiting) in self.waiting.iter().enumerate() {
            let (_, best) = first.entry(&waiting.user.name).or_insert((at, at));
            // The oldest of those with the highest priority.
            if waiting.priority > self.waiting[*best].priority {
                *best = at;
            }
        }
        let claim = |(user, (oldest, best)): (&str, (usize, usize))| {
            let UserPart { held, last_grant } = self.part(user);
            ((held, last_grant, oldest), best)
        };
        let mut claims: Vec<_> = first.into_iter().map(claim).collect();
        claims.sort_unstable();
        claims.into_iter().map(|(_, best)| best).collect()
    }
}

impl SharedPlace {
    /// Takes an amount more at once.
    ///
    /// # Errors
    /// The limit is reached, for its user; the place stays as it is.
    pub fn grow(&mut self, amount: u64) -> Result<(), LimitReached> {
        let more = self.limit.try_acquire(&self.user, amount)?;
        self.merge(more);
        Ok(())
    }

    /// Adds another place of the same user of the same limit.
    pub fn merge(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.limit, &other.limit) && self.user == other.user);
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Gives back what is more than an amount.
    pub fn shrink_to(&mut self, amount: u64) {
        let rest = self.amount.saturating_sub(amount);
        self.amount -= rest;
        drop(Self { limit: Arc::clone(&self.limit), user: self.user.clone(), amount: rest });
    }

    /// Its user.
    pub fn user(&self) -> &LimitUser {
        &self.user
    }

    /// How much it is.
    pub fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for SharedPlace {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.limit.state().release(&self.user.name, self.amount);
            self.limit.grant();
        }
    }
}

#[cfg(test)]
mod tests;
