//! Protocol rules outside the core, each of which can be disabled to show its effect.

/// The rules in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProtocolRules {
    /// Deliveries within a lease after a connection are claimed before they run.
    pub(crate) suspicion: bool,
    /// A worker forgets a delivery answered with `hold`.
    pub(crate) hold_answer_forgets: bool,
    /// Without an answer, a worker checks the heartbeats of others.
    pub(crate) checks_peer_heartbeats: bool,
    /// Without an answer, a worker checks the markers.
    pub(crate) checks_markers: bool,
    /// Heartbeats list finished executions that are not acknowledged.
    pub(crate) heartbeat_lists_finished: bool,
    /// Acknowledgements are sent only to the server incarnation that they belong to.
    pub(crate) acks_check_incarnation: bool,
    /// Results leave markers.
    pub(crate) markers: bool,
    /// The directory of a dead worker is adopted.
    pub(crate) dir_recovery: bool,
    /// Reports are read to their head before a claim is answered.
    pub(crate) reads_before_answer: bool,
    /// Heartbeats are read continuously, and before a claim is answered.
    pub(crate) watches_heartbeats: bool,
    /// After a reconnect the position is checked to be unchanged.
    pub(crate) checks_position_on_reconnect: bool,
    /// Only reports covered by the lock's head are purged.
    pub(crate) purges_confirmed: bool,
    /// Reports are purged only if the position is unchanged.
    pub(crate) purge_checks_position: bool,
    /// Effects wait for their records.
    pub(crate) durable_before_effect: bool,
    /// A reconciliation round reads the reports to their head again at its end.
    pub(crate) reconcile_reads_again: bool,
    /// A copy of the journal must contain the lock's head.
    pub(crate) head_in_lock: bool,
    /// Reconciliation rounds take place.
    pub(crate) reconciles: bool,
    /// Missing items are looked up in the store.
    pub(crate) looks_up_results: bool,
    /// The core is notified of every connection.
    pub(crate) reports_reconnects: bool,
    /// The notification precedes all other input from that connection.
    pub(crate) reports_reconnects_first: bool,
}

impl ProtocolRules {
    pub(crate) const ALL: Self = Self {
        suspicion: true,
        hold_answer_forgets: true,
        checks_peer_heartbeats: true,
        checks_markers: true,
        heartbeat_lists_finished: true,
        acks_check_incarnation: true,
        markers: true,
        dir_recovery: true,
        reads_before_answer: true,
        watches_heartbeats: true,
        checks_position_on_reconnect: true,
        purges_confirmed: true,
        purge_checks_position: true,
        durable_before_effect: true,
        reconcile_reads_again: true,
        head_in_lock: true,
        reconciles: true,
        looks_up_results: true,
        reports_reconnects: true,
        reports_reconnects_first: true,
    };
}
