//! Bounds the memory of large responses that their clients have not read.

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::client::Client;
use super::problem::{Problem, ProblemCode};
use super::share::{Shares, Shortage};

/// The size up to which a response is free, in bytes: it fits into the buffers of its connection.
const FREE: usize = 64 * 1024;
/// The most bytes of larger responses in memory.
const ROOM: usize = 256 * 1024 * 1024;
/// The share of one client. A larger response counts as this much.
const ROOM_OF_ONE: usize = ROOM / 2;

/// The memory for the large responses of some routes. Cheap to clone; clones share the memory.
#[derive(Clone, Debug)]
pub struct Unread(Shares);

impl Default for Unread {
    fn default() -> Self {
        Self(Shares::new(ROOM, ROOM_OF_ONE))
    }
}

impl Unread {
    /// Bounds the responses of routes. Apply it to them with [`axum::middleware::from_fn_with_state`], inside the layer that
    /// requires a token. A response of unknown size is not bounded.
    pub async fn bound(State(unread): State<Self>, request: Request, next: Next) -> Response {
        let client = Client::of(&request);
        unread.hold(client, next.run(request).await).await
    }

    /// Returns a response to this client, which holds its memory until it is written; the problem `unavailable` if the client
    /// or all clients have too many.
    pub async fn hold(&self, client: Client, response: Response) -> Response {
        let held = self.try_hold(client, response).await;
        held.unwrap_or_else(IntoResponse::into_response)
    }

    /// Returns a response like [`Unread::hold`].
    ///
    /// # Errors
    /// The client or all clients have too many.
    pub async fn try_hold(&self, client: Client, response: Response) -> Result<Response, Problem> {
        let size = response.body().size_hint().exact().unwrap_or(0);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size <= FREE {
            return Ok(response);
        }
        let mut room = self.0.begin(client);
        if let Err(shortage) = room.try_add(size.min(self.0.of_one())) {
            return Err(refusal(shortage));
        }
        let (parts, body) = response.into_parts();
        match to_bytes(body, size).await {
            Ok(bytes) => Ok(Response::from_parts(parts, Body::from(room.hold(bytes)))),
            Err(_) => Err(refusal(Shortage::OfAll)),
        }
    }
}

fn refusal(shortage: Shortage) -> Problem {
    let of_client = match shortage {
        Shortage::OfClient => " of this client",
        Shortage::OfAll => "",
    };
    let detail = format!("too many large responses{of_client} are not read yet; retry later");
    Problem::new(ProblemCode::Unavailable, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_read_large_responses_gets_no_more_of_them() {
        let unread = Unread(Shares::new(4 * FREE, 3 * FREE));
        let client = |name: &str| Client::Token(name.into());
        let of_size = |size: usize| Response::new(Body::from(vec![b'x'; size]));
        let get = async |name, size| unread.hold(client(name), of_size(size)).await;
        let first = get("a", FREE + 1).await;
        let second = get("a", FREE + 1).await;
        assert_eq!([first.status(), second.status()], [200, 200]);
        for (name, size, detail) in [
            ("a", FREE + 1, "too many large responses of this client are"),
            ("b", 3 * FREE, "too many large responses are"),
        ] {
            let refused = get(name, size).await;
            assert_eq!(refused.status(), 503);
            let body = to_bytes(refused.into_body(), FREE).await.unwrap();
            let text = String::from_utf8_lossy(&body);
            assert!(text.contains(detail), "{text}");
        }
        // Small ones are free.
        assert_eq!(get("a", FREE).await.status(), 200);
        // The memory is free once the bytes are gone, not when they are taken from the body.
        let bytes = to_bytes(first.into_body(), usize::MAX).await.unwrap();
        assert_eq!(get("a", FREE + 1).await.status(), 503);
        assert_eq!(bytes.len(), FREE + 1);
        drop(bytes);
        assert_eq!(get("a", FREE + 1).await.status(), 200);
        // One that is larger than the share can be read alone.
        drop(second);
        assert_eq!(get("b", 9 * FREE).await.status(), 200);
    }
}
