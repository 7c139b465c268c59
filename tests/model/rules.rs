//! Rules outside the core, each of which can be left out to see what it is for.

/// What is obeyed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProtocolRules {
    /// What is delivered within a lease of a connection is claimed before it runs.
    pub(crate) suspicion: bool,
    /// `hold` means forget.
    pub(crate) hold_forgets: bool,
    /// Without an answer the hellos of others are looked at.
    pub(crate) looks_at_peers: bool,
    /// Without an answer the markers are looked at.
    pub(crate) looks_at_markers: bool,
    /// A hello lists what is finished and not acknowledged.
    pub(crate) hello_lists_finished: bool,
    /// Acknowledgements are sent only within the life of the server that they are of.
    pub(crate) acks_check_life: bool,
    /// Results leave markers.
    pub(crate) markers: bool,
    /// A dead worker's directory is adopted.
    pub(crate) adoption: bool,
    /// Reports are read to their head before a claim is answered.
    pub(crate) reads_before_answer: bool,
    /// Hellos are taken in all the time, and before a claim is answered.
    pub(crate) watches_hellos: bool,
    /// After a connection it is looked whether the position is still what it was.
    pub(crate) anchor: bool,
    /// Only what the lock's head contains is purged.
    pub(crate) purges_confirmed: bool,
    /// Nothing is purged unless the position is still what it was.
    pub(crate) purge_looks: bool,
    /// Effects wait for their records.
    pub(crate) durable_before_effect: bool,
    /// A round reads the reports to their head again at its end.
    pub(crate) round_reads_again: bool,
    /// A copy of the journal must contain the head in the lock.
    pub(crate) head_in_lock: bool,
    /// There are rounds of reconciliation.
    pub(crate) rounds: bool,
    /// What is nowhere is looked for in the store.
    pub(crate) looks_for_results: bool,
    /// The core hears of every connection.
    pub(crate) tells_reconnects: bool,
    /// It hears of it before anything else that is learnt through it.
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
