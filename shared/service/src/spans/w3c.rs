//! Trace contexts as texts, as in W3C Trace Context: the headers `traceparent` and `tracestate`.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Parses a context. Returns `None` for an invalid `traceparent`. Ignores an invalid `tracestate`, as the standard requires.
pub(super) fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.trim().split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
    };
    let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    // A later version may have more parts.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state: Option<TraceState> = tracestate.and_then(|state| state.parse().ok());
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        flags,
        true,
        state.unwrap_or_default(),
    );
    context.is_valid().then_some(context)
}

/// The longest `tracestate` that is passed on, in bytes: the standard requires no more, and each message of a batch gets a copy.
const LONGEST_STATE: usize = 512;

/// Writes a context: its `traceparent`, and its `tracestate` if it has one that is not too long.
pub(super) fn write(context: &SpanContext) -> (String, Option<String>) {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
    let state = context.trace_state().header();
    let traceparent = format!("00-{trace:032x}-{span:016x}-{flags:02x}");
    let is_passed_on = (1..=LONGEST_STATE).contains(&state.len());
    (traceparent, is_passed_on.then_some(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_context_is_the_same_after_it_was_written() {
        for flags in ["00", "01"] {
            let text = format!("00-{TRACE}-{SPAN}-{flags}");
            let context = parse(&text, Some("vendor=a,other=b")).unwrap();
            assert!(context.is_remote());
            assert_eq!(context.is_sampled(), flags == "01");
            let state = "vendor=a,other=b".to_owned();
            assert_eq!(write(&context), (text, Some(state)));
        }
        let without = parse(&format!("00-{TRACE}-{SPAN}-01"), Some("not a state")).unwrap();
        assert_eq!(write(&without).1, None);
        for (length, is_passed_on) in [(LONGEST_STATE, true), (LONGEST_STATE + 1, false)] {
            let most = "x".repeat(200);
            let state = format!("a={most},b={most},c={}", "x".repeat(length - 408));
            let context = parse(&format!("00-{TRACE}-{SPAN}-01"), Some(&state)).unwrap();
            assert_eq!(write(&context).1, is_passed_on.then_some(state));
        }
    }

    #[test]
    fn a_later_version_may_have_more_parts_and_flags() {
        let later = parse(&format!("cc-{TRACE}-{SPAN}-09-what"), None).unwrap();
        assert!(later.is_sampled());
        assert_eq!(write(&later).0, format!("00-{TRACE}-{SPAN}-01"));
    }

    #[test]
    fn what_the_standard_refuses_is_no_context() {
        for text in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{SPAN}-{TRACE}-01"),
            format!("00-{TRACE}-{}-01", "ä".repeat(8)),
        ] {
            assert_eq!(parse(&text, None), None, "{text}");
        }
    }
}
