//! The span of a send.

use lisa_core::broker::TopicHandle;
use lisa_core::message::PreparedMessage;
use lisa_core::time::UnixMs;
use lisa_service::spans::{CommonAttributes, Span};

use crate::error::SendError;
use crate::producer::ProducerOptions;
use crate::receipt::Receipt;

/// Starts the span of a send, if there are spans.
pub(crate) fn start(
    options: &ProducerOptions,
    now: UnixMs,
    topic: &TopicHandle,
    messages: &mut [&mut PreparedMessage],
    is_batch: bool,
) -> Option<Span> {
    let spans = options.spans.as_ref()?;
    let shard = topic.shard_of_message(messages.first()?);
    let is_of_shard = |message: &&mut PreparedMessage| topic.shard_of_message(message) == shard;
    let common = CommonAttributes {
        topic: topic.name(),
        group: None,
        shard: messages.iter().all(is_of_shard).then_some(shard),
        client: None,
    };
    Some(spans.send(&common, messages, is_batch, now))
}

/// Ends the span of a send. It failed if any of its messages failed.
pub(crate) fn end<'a>(
    span: Option<Span>,
    results: impl IntoIterator<Item = &'a Result<Receipt, SendError>, IntoIter: ExactSizeIterator>,
) {
    let Some(span) = span else { return };
    let mut results = results.into_iter();
    let is_one = results.len() == 1;
    let failed = results.find_map(|result| match result {
        Ok(Receipt { due: Some(due), .. }) if is_one => {
            span.due(*due);
            None
        }
        Ok(_) => None,
        Err(error) => Some(error.word()),
    });
    if let Some(word) = failed {
        span.failed(word);
    }
}
