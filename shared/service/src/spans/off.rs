//! The spans of a build without OpenTelemetry: types without values, whose methods are never called. Their field is private, so
//! that the compiler does not report code that uses them as unreachable.

use std::convert::Infallible;
use std::time::SystemTime;

use lisa_core::message::PreparedMessage;
use lisa_core::time::UnixMs;

use super::{CommonAttributes, Delivered, Messages};

/// The maker of spans. No value exists, because this build has no feature `otel-api`.
#[derive(Clone, Debug)]
pub struct Spans(Infallible);

/// A span. No value exists.
#[derive(Debug)]
pub struct Span(Infallible);

/// The trace context of a span. No value exists.
#[derive(Clone, Debug)]
pub struct Trace(Infallible);

pub(super) type Attached = Infallible;

#[expect(missing_docs, reason = "see the other build")]
impl Spans {
    pub fn send(
        &self,
        _: &CommonAttributes<'_>,
        _: &mut [&mut PreparedMessage],
        _: bool,
        _: UnixMs,
    ) -> Span {
        match self.0 {}
    }

    pub fn process(&self, _: &CommonAttributes<'_>, _: &Delivered<'_>) -> Span {
        match self.0 {}
    }

    pub fn receive(&self, _: &CommonAttributes<'_>, _: &[Delivered<'_>], _: bool, _: SystemTime) {
        match self.0 {}
    }

    pub fn settle(
        &self,
        _: &CommonAttributes<'_>,
        _: &'static str,
        _: Messages<'_>,
        _: Option<&Span>,
    ) -> Span {
        match self.0 {}
    }
}

#[expect(missing_docs, reason = "see the other build")]
impl Span {
    pub fn due(&self, _: UnixMs) {
        match self.0 {}
    }

    pub fn failed(&self, _: &'static str) {
        match self.0 {}
    }

    pub fn end(&self) {
        match self.0 {}
    }

    pub fn is_sampled(&self) -> bool {
        match self.0 {}
    }

    pub fn trace(&self) -> Option<Trace> {
        match self.0 {}
    }

    pub(super) fn attach(&self) -> Attached {
        match self.0 {}
    }
}

#[expect(missing_docs, reason = "see the other build")]
impl Trace {
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self.0 {}
    }
}
