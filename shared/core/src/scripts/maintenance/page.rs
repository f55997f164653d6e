//! See `page.lua`.

use crate::keys::{GroupKeys, ShardKeys};
use crate::scripts::{Args, KeyOf, Operation, Reply, UnexpectedReply, script, unexpected};
use crate::time::UnixMs;

/// A page of messages in the order of their times.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The least time.
    pub(crate) from: UnixMs,
    /// The end of the times, exclusive.
    pub(crate) to: UnixMs,
    pub(crate) newest_first: bool,
    /// The number of messages, at most 1000.
    pub(crate) limit: usize,
    /// The time and the member of the last message of the previous page.
    pub(crate) after: Option<(UnixMs, String)>,
}

/// A message of a page.
pub(crate) struct PageItem {
    pub(crate) member: String,
    pub(crate) time: UnixMs,
    /// The details of the message in its state; empty if there are none.
    pub(crate) text: String,
}

impl PageItem {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        Ok(Self {
            member: reply.text()?,
            time: UnixMs::new(reply.number()?),
            text: reply.lossy()?,
        })
    }
}

/// Defines the page of one state, which differs only in its keys.
macro_rules! page {
    ($(#[$doc:meta])* $name:ident, $scope:ty, $keys:expr) => {
        $(#[$doc])*
        pub(crate) struct $name(pub(crate) Page);

        impl Operation for $name {
            type Scope = $scope;
            type Reply = Vec<PageItem>;
            const KEYS: &'static [KeyOf<Self::Scope>] = $keys;
            const ARGS: &'static [&'static str] =
                &["from", "to", "newest", "limit", "time", "member"];
            script!("page");

            fn args(&self, args: &mut Args<'_>) {
                let Self(page) = self;
                args.number(page.from.get());
                args.number(page.to.get());
                args.flag(page.newest_first);
                args.number(page.limit);
                let after = page.after.as_ref();
                args.optional(after.map(|(time, _)| time.get()));
                args.text(after.map_or("", |(_, member)| member));
            }

            fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
                match reply.text()?.as_str() {
                    "page" => reply.rest(PageItem::read),
                    other => Err(unexpected("page", &other)),
                }
            }
        }
    };
}

page! {
    /// A page of waiting messages.
    PageOfWaiting, ShardKeys, &[("times", |keys| &keys.waiting)]
}
page! {
    /// A page of messages that wait for their next attempt.
    PageOfRetry, GroupKeys,
    &[("times", |keys| &keys.group.retry), ("details", |keys| &keys.group.attempts)]
}
page! {
    /// A page of messages in garbage.
    PageOfGarbage, GroupKeys,
    &[("times", |keys| &keys.group.garbage), ("details", |keys| &keys.group.garbage_info)]
}
