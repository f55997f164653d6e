//! Late calls about a delivery that has ended: its message may be with no consumer.

use super::{CopyState, Holder, Reference};
use lisa_core::broker::{Hidden, LateAck};
use lisa_core::message::MessageId;
use lisa_core::state::End;

/// The ready messages that a late call looks at.
const AHEAD: usize = 100;

/// The reason why a late call changes nothing.
enum Missed {
    Waiting,
    Unknown,
    Held,
}

impl Reference {
    /// Acknowledges a copy that is with no consumer.
    pub(in super::super) fn ack_late(&mut self, clock: u64, g: usize, id: &MessageId) -> LateAck {
        match self.find_late(g, id) {
            Ok(_) => {}
            Err(Missed::Waiting) => return LateAck::Waiting,
            Err(Missed::Unknown) => return LateAck::Unknown,
            Err(Missed::Held) => return LateAck::Held,
        }
        self.begin(clock, 20);
        let message = self.message(id);
        let survivor = message.meta.as_ref().is_some_and(|meta| meta.survivor);
        let key = message.key();
        self.groups[g].stream.retain(|d| d.id != *id);
        self.unmerge(id);
        self.end_copy(g, id, "acked", survivor.then_some(End::Acked));
        self.release(g, id, &key);
        self.finish([g]);
        LateAck::Acked
    }

    /// Postpones a copy that is with no consumer, its key kept. Without a delay, one that is due already keeps its place.
    pub(in super::super) fn hide(
        &mut self,
        clock: u64,
        g: usize,
        id: &MessageId,
        delay: u64,
    ) -> Hidden {
        let state = match self.find_late(g, id) {
            Ok(state) => state,
            Err(Missed::Waiting) => return Hidden::Waiting,
            Err(Missed::Unknown) => return Hidden::Unknown,
            Err(Missed::Held) => return Hidden::Held,
        };
        let now = self.begin(clock, 20);
        if delay > 0 || matches!(state, CopyState::Retry(time) if time > now) {
            self.groups[g].stream.retain(|d| d.id != *id);
            self.retry_later(g, id, now + delay);
            self.finish([g]);
        }
        Hidden::Hidden
    }

    /// Returns the state of a copy that a late call may change.
    fn find_late(&self, g: usize, id: &MessageId) -> Result<CopyState, Missed> {
        let message = self.messages.get(id).ok_or(Missed::Unknown)?;
        if message.waiting {
            return Err(Missed::Waiting);
        }
        let record = message.record.as_ref().ok_or(Missed::Unknown)?;
        let group = &self.groups[g];
        let ready = group.stream.iter().filter(|d| d.holder == Holder::Ready);
        let is_near = ready.take(AHEAD).any(|d| d.id == *id);
        match group.states.get(id) {
            _ if record.caller_id => Err(Missed::Held),
            Some(CopyState::Stream) if !is_near => Err(Missed::Held),
            None | Some(CopyState::Garbage(_)) => Err(Missed::Held),
            Some(state) => Ok(state.clone()),
        }
    }
}
