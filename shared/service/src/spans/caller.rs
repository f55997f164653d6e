//! The trace context of the caller of an HTTP request: what the request does becomes a part of the caller's trace.

use axum::Router;

#[cfg(not(feature = "otel-api"))]
pub(crate) fn follow(router: Router, _: Option<&super::Spans>) -> Router {
    router
}

/// Runs each request within the context that its `traceparent` names, its streamed bodies included.
#[cfg(feature = "otel-api")]
pub(crate) fn follow(router: Router, spans: Option<&super::Spans>) -> Router {
    match spans {
        Some(_) => router.layer(axum::middleware::from_fn(on::follow)),
        None => router,
    }
}

#[cfg(feature = "otel-api")]
mod on {
    use std::pin::Pin;
    use std::task::{Context as Task, Poll};

    use axum::body::{Body, Bytes, HttpBody};
    use axum::extract::Request;
    use axum::http::HeaderMap;
    use axum::middleware::Next;
    use axum::response::Response;
    use hyper::body::{Frame, SizeHint};
    use opentelemetry::Context;
    use opentelemetry::context::FutureExt;
    use opentelemetry::trace::{SpanContext, TraceContextExt};

    use super::super::{TRACE_HEADERS, w3c};

    pub(super) async fn follow(request: Request, next: Next) -> Response {
        let Some(caller) = caller(request.headers()) else {
            return next.run(request).await;
        };
        let context = Context::new().with_remote_span_context(caller);
        let response = next.run(request).with_context(context.clone()).await;
        response.map(|body| Body::new(Within { body, context }))
    }

    fn caller(headers: &HeaderMap) -> Option<SpanContext> {
        let header = |name| headers.get(name)?.to_str().ok();
        let [parent, state] = TRACE_HEADERS;
        w3c::parse(header(parent)?, header(state))
    }

    /// A body that is made within a context.
    struct Within {
        body: Body,
        context: Context,
    }

    impl HttpBody for Within {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            task: &mut Task<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            let _attached = self.context.clone().attach();
            Pin::new(&mut self.body).poll_frame(task)
        }

        fn is_end_stream(&self) -> bool {
            self.body.is_end_stream()
        }

        fn size_hint(&self) -> SizeHint {
            self.body.size_hint()
        }
    }
}
