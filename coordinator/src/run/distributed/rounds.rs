//! Reconciliation: what the queue holds against what is owed, at the beginning, every half lease,
//! and after every outage.

use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::id::RunId;
use rollout_worker::outage::Outage;
use rollout_worker::port::{Dispatch, Incarnation, Position, QueueError};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::head::caught_up;
use crate::run::engine::News;

/// What rounds of reconciliation need.
#[derive(Debug)]
pub(super) struct Rounds {
    pub(super) run: RunId,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) handled: watch::Receiver<Option<Position>>,
    pub(super) lease: Duration,
    pub(super) to: mpsc::Sender<News>,
}

impl Rounds {
    /// Goes round until nobody listens.
    pub(super) async fn go(mut self) {
        let mut contact = self.dispatch.contact();
        let mut known = (contact.borrow_and_update().connections, None);
        let outage = Outage::new("looking at the queue");
        let mut patience = outage.patience();
        while !self.to.is_closed() {
            match self.round(&mut known).await {
                Ok(()) => patience.works(),
                Err(error) => {
                    patience.failed(&error).await;
                    continue;
                }
            }
            // A new connection is looked at at once.
            let connected = contact.wait_for(|now| now.up && now.connections != known.0);
            let _its_time = timeout(self.lease / 2, connected).await;
        }
    }

    /// One round. What it saw counts only if the connection lasted.
    async fn round(&mut self, known: &mut (u64, Option<Incarnation>)) -> Result<(), QueueError> {
        let connections = self.dispatch.contact().borrow().connections;
        let incarnation = self.dispatch.incarnation().await?;
        let same = known.0 == connections && known.1.is_none_or(|before| before == incarnation);
        *known = (connections, Some(incarnation));
        if !same {
            self.say(News::Reconnected).await;
        }
        caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let listed = self.dispatch.list(self.run).await?;
        let hellos = self.dispatch.hellos().await?;
        self.say(News::Hellos(hellos, self.dispatch.hellos_kept())).await;
        caught_up(self.run, &*self.dispatch, &mut self.handled).await?;
        let lasted = self.dispatch.contact().borrow().connections == connections
            && self.dispatch.incarnation().await? == incarnation;
        if lasted {
            self.say(News::Observed(listed)).await;
        }
        Ok(())
    }

    async fn say(&self, news: News) {
        // Without a listener the next look ends it.
        drop(self.to.send(news).await);
    }
}
