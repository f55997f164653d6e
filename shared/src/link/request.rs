//! One request in the forms in which it can be sent over a connection.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::Script;
use super::errors::no_error_inside;
use super::reader::command_name;

/// One request in either form.
#[derive(Clone, Copy)]
pub(super) enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
    /// A command, and another one behind it that keeps the connection busy for up to `takes`.
    Then {
        cmd: &'a Cmd,
        then: &'a Cmd,
        takes: Duration,
    },
}

impl Request<'_> {
    /// Sends it; `asks` to a node that imports the slot of the keys.
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
            Self::Many(pipeline) => {
                let replies = conn.send_packed_commands(pipeline, 0, pipeline.len());
                Some(Value::Array(replies.await?))
            }
        };
        no_error_inside(reply.unwrap_or(Value::Nil))
    }

    /// How long Redis may take for it on purpose.
    pub(super) fn takes(self) -> Duration {
        match self {
            Self::One(_) | Self::Many(_) => Duration::ZERO,
            Self::Then { takes, .. } => takes,
        }
    }
}

/// Sends two commands in one write; only an error of the first one is an error.
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

/// Sends commands with an `ASKING` before each: it holds for one command only. One write, so that no other request
/// comes between.
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

/// Names a request for errors; only failures pay for it.
pub(super) fn name_of(request: Request<'_>, script: Option<&Script>) -> String {
    match (request, script) {
        (_, Some(script)) => script.name().to_owned(),
        (Request::One(cmd) | Request::Then { cmd, .. }, None) => command_name(cmd),
        (Request::Many(pipeline), None) => {
            let first = pipeline
                .cmd_iter()
                .next()
                .map(command_name)
                .unwrap_or_default();
            format!("pipeline of {} from {first}", pipeline.len())
        }
    }
}
