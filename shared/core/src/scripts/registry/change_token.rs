//! See `change_token.lua`.

use crate::names::TokenName;
use crate::scripts::operation;

/// Stores, replaces or removes a token.
pub(crate) struct ChangeToken<'a> {
    pub(crate) token: &'a TokenName,
    /// The new record; empty removes the token.
    pub(crate) record: &'a str,
    /// The version that the caller read; 0 for a token that does not exist.
    pub(crate) at: u64,
    /// The largest number of tokens.
    pub(crate) most: usize,
}

/// The result of a change of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenChange {
    /// It is changed, at this version.
    Changed(u64),
    /// It is at another version, 0 if it does not exist.
    Other(u64),
    /// There are too many tokens.
    Full,
}

operation! {
    "change_token" on registry(tokens): ChangeToken<'_>, |call, args, reply|
    args {
        token: args.text(call.token.as_str()),
        record: args.text(call.record),
        at: args.number(call.at),
        most: args.number(call.most),
    }
    reply TokenChange {
        "done" => Ok(TokenChange::Changed(reply.number()?)),
        "other" => Ok(TokenChange::Other(reply.number()?)),
        "full" => Ok(TokenChange::Full),
    }
}
