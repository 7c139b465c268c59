//! Answers to workers that hold a suspicious delivery.

use rollout_protocol::wire::claim::{Answer, Claim};

use super::Core;
use super::effect::Effect;
use super::handle::Output;
use super::input::Now;
use super::merge;
use super::record::Record;
use super::row::{Known, State};

impl Core {
    pub(super) fn claim(&mut self, now: Now, id: u64, claim: Claim, out: &mut impl Output) {
        let answer = self.answer(&claim);
        if answer == Answer::Run {
            self.commit(now, Record::Claimed { claim }, out);
        }
        out.effects().push(Effect::Answer { id, answer });
    }

    fn answer(&self, claim: &Claim) -> Answer {
        let Some(row) = self.rows.get(&claim.item) else { return Answer::Drop };
        if self.stop.is_some() || row.state != State::Offered {
            return Answer::Drop;
        }
        if claim.try_id != row.current || claim.spec != row.spec || merge::is_withheld(row) {
            return Answer::Drop;
        }
        let another = |known: &&Known| known.is_open() && known.exec != claim.exec;
        if row.executions.iter().any(|known| another(&known)) { Answer::Hold } else { Answer::Run }
    }
}
