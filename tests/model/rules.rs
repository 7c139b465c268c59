//! Protocol rules outside the core, each of which can be disabled to show its effect.

/// The rules in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProtocolRules {
    /// Deliveries within a lease after a connection are claimed before they run.
    pub(crate) suspicion: bool,
    /// A worker forgets a delivery answered with `hold`.
    pub(crate) hold_forgets: bool,
    /// Without an answer, a worker checks the heartbeats of others.
    pub(crate) looks_at_peers: bool,
    /// Without an answer, a worker checks the markers.
    pub(crate) looks_at_markers: bool,
    /// Heartbeats list finished executions that are not acknowledged.
    pub(crate) hello_lists_finished: bool,
    /// Acknowledgements are sent only to the server incarnation that they belong to.
    pub(crate) acks_check_life: bool,
    /// Results leave markers.
    pub(crate) markers: bool,
    /// The directory of a dead worker is adopted.
    pub(crate) adoption: bool,
    /// Reports are read to their head before a claim is answered.
    pub(crate) reads_before_answer: bool,
    /// Heartbeats are read continuously, and before a claim is answered.
    pub(crate) watches_hellos: bool,
    /// After a reconnect the position is checked to be unchanged.
    pub(crate) anchor: bool,
    /// Only reports covered by the lock's head are purged.
    pub(crate) purges_confirmed: bool,
    /// Reports are purged only if the position is unchanged.
    pub(crate) purge_looks: bool,
    /// Effects wait for their records.
    pub(crate) durable_before_effect: bool,
    /// A reconciliation round reads the reports to their head again at its end.
    pub(crate) round_reads_again: bool,
    /// A copy of the journal must contain the lock's head.
    pub(crate) head_in_lock: bool,
    /// Reconciliation rounds take place.
    pub(crate) rounds: bool,
    /// Missing items are looked up in the store.
    pub(crate) looks_for_results: bool,
    /// The core is notified of every connection.
    pub(crate) tells_reconnects: bool,
    /// The notification precedes all other input from that connection.
    pub(crate) tells_reconnects_first: bool,
}

impl ProtocolRules {
    pub(crate) const ALL: Self = Self {
        suspicion: true,
        hold_forgets: true,
        looks_at_peers: true,
        looks_at_markers: true,
        hello_lists_finished: true,
        acks_check_life: true,
        markers: true,
        adoption: true,
        reads_before_answer: true,
        watches_hellos: true,
        anchor: true,
        purges_confirmed: true,
        purge_looks: true,
        durable_before_effect: true,
        round_reads_again: true,
        head_in_lock: true,
        rounds: true,
        looks_for_results: true,
        tells_reconnects: true,
        tells_reconnects_first: true,
    };
}
