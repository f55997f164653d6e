//! A request, in the forms in which it can be sent over a socket.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, RedisError, Value};

use super::Script;
use super::errors::no_error_inside;

/// One request in one of its forms.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
    /// Independent commands: an error of one is a reply among the others.
    Each(&'a Pipeline),
    /// A command, followed by one that keeps the socket busy for up to `takes`.
    Then {
        cmd: &'a Cmd,
        then: &'a Cmd,
        takes: Duration,
    },
}

impl Request<'_> {
    /// Sends it. Set `asks` for a node that is importing the slot of the keys.
    pub(super) async fn send(
        self,
        conn: &mut MultiplexedConnection,
        asks: bool,
    ) -> Result<Value, RedisError> {
        let reply = match self {
            Self::Then { cmd, then, .. } => return both(cmd, then, conn, asks).await,
            Self::One(cmd) if asks => asking([cmd], conn).await?.pop(),
            Self::One(cmd) => Some(conn.send_packed_command(cmd).await?),
            Self::Many(pipeline) if asks => {
                Some(Value::Array(asking(pipeline.cmd_iter(), conn).await?))
            }
            Self::Each(pipeline) => {
                let replies = conn.send_packed_commands(pipeline, 0, pipeline.len());
                return Ok(Value::Array(replies.await?));
            }
            Self::Many(pipeline) => {
                let replies = conn.send_packed_commands(pipeline, 0, pipeline.len());
                Some(Value::Array(replies.await?))
            }
        };
        no_error_inside(reply.unwrap_or(Value::Nil))
    }

    /// Returns the time for which the request may block in Redis on purpose.
    pub(super) fn takes(self) -> Duration {
        match self {
            Self::One(_) | Self::Many(_) | Self::Each(_) => Duration::ZERO,
            Self::Then { takes, .. } => takes,
        }
    }
}

/// Sends two commands in one write; only an error of the first is returned as an error.
async fn both(
    cmd: &Cmd,
    then: &Cmd,
    conn: &mut MultiplexedConnection,
    asks: bool,
) -> Result<Value, RedisError> {
    let mut pipeline = Pipeline::with_capacity(3);
    if asks {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(cmd.clone()).add_command(then.clone());
    let replies = conn
        .send_packed_commands(&pipeline, usize::from(asks), 2)
        .await?;
    let mut replies = replies.into_iter();
    let first = no_error_inside(replies.next().unwrap_or(Value::Nil))?;
    Ok(Value::Array(vec![
        first,
        replies.next().unwrap_or(Value::Nil),
    ]))
}

/// Sends each command after an `ASKING`, which applies to one command only. A single write keeps other requests from
/// coming between.
async fn asking(
    cmds: impl IntoIterator<Item = &Cmd>,
    conn: &mut MultiplexedConnection,
) -> Result<Vec<Value>, RedisError> {
    let mut pipeline = Pipeline::new();
    for cmd in cmds {
        pipeline.cmd("ASKING");
        pipeline.add_command(cmd.clone());
    }
    let replies = conn
        .send_packed_commands(&pipeline, 0, pipeline.len())
        .await?;
    Ok(replies.into_iter().skip(1).step_by(2).collect())
}

/// Returns the name of a request for errors; only failures pay for it.
pub(super) fn name_of(request: Request<'_>, script: Option<&Script>) -> String {
    match (request, script) {
        (_, Some(script)) => script.name().to_owned(),
        (Request::One(cmd) | Request::Then { cmd, .. }, None) => command_name(cmd),
        (Request::Many(pipeline) | Request::Each(pipeline), None) => {
            let first = pipeline
                .cmd_iter()
                .next()
                .map(command_name)
                .unwrap_or_default();
            format!("pipeline of {} from {first}", pipeline.len())
        }
    }
}

/// Returns the first word of a command, for errors.
pub(super) fn command_name(cmd: &Cmd) -> String {
    match cmd.args_iter().next() {
        Some(Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => "command".to_owned(),
    }
}
