//! The sampler: the standard one that the environment names. With `parentbased_…`, a delivery is recorded if the send of its message
//! was.
//!
//! A delivery starts a trace of its own, so a sampler that follows the parent finds none. If a tenth of all traces was recorded, both
//! traces would be recorded for only a hundredth of the messages, and most links would lead nowhere.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Config, SamplingDecision, SamplingResult, ShouldSample};

use super::environment::Environment;

const NAMES: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
const PARENT_BASED: &str = "parentbased_";

/// Returns the sampler to set; `None` for that of the library, which reads the environment itself. A mistake is logged.
pub(super) fn of(environment: &Environment) -> Option<FollowLinks> {
    let name = environment.get("OTEL_TRACES_SAMPLER");
    if let Some(why) = mistake(name, environment.get("OTEL_TRACES_SAMPLER_ARG")) {
        tracing::warn!("{why}");
    }
    let is_other = |name: &str| NAMES.contains(&name) && !name.starts_with(PARENT_BASED);
    (!name.is_some_and(is_other)).then(|| FollowLinks(Config::default().sampler))
}

/// Describes what is wrong with the variables, and what the library does then.
fn mistake(name: Option<&str>, argument: Option<&str>) -> Option<String> {
    let name = name?;
    if !NAMES.contains(&name) {
        let names = NAMES.join(", ");
        return Some(format!(
            "OTEL_TRACES_SAMPLER is {name}, must be one of {names}: using parentbased_always_on"
        ));
    }
    let ratio = argument.and_then(|ratio| ratio.parse().ok());
    let is_ratio = |ratio: f64| (0.0..=1.0).contains(&ratio);
    (name.ends_with("traceidratio") && !ratio.is_some_and(is_ratio)).then(|| {
        let given = argument.unwrap_or("not set");
        format!("OTEL_TRACES_SAMPLER_ARG is {given}, must be 0 to 1")
    })
}

/// Follows the links of a span without a parent: it is recorded if one of them is. Otherwise, the standard sampler decides.
#[derive(Clone, Debug)]
pub(super) struct FollowLinks(Box<dyn ShouldSample>);

impl ShouldSample for FollowLinks {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let has_parent = parent.is_some_and(|parent| parent.span().span_context().is_valid());
        if has_parent || links.is_empty() {
            return self
                .0
                .should_sample(parent, trace, name, kind, attributes, links);
        }
        let is_recorded = links.iter().any(|link| link.span_context.is_sampled());
        SamplingResult {
            decision: match is_recorded {
                true => SamplingDecision::RecordAndSample,
                false => SamplingDecision::Drop,
            },
            attributes: Vec::new(),
            trace_state: TraceState::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags};
    use opentelemetry_sdk::trace::Sampler;

    use super::*;

    fn context(flags: TraceFlags) -> SpanContext {
        let (trace, span) = (TraceId::from(7), SpanId::from(8));
        SpanContext::new(trace, span, flags, true, TraceState::default())
    }

    #[test]
    fn a_span_without_a_parent_is_recorded_if_one_that_it_links_to_is() {
        let off = FollowLinks(Box::new(Sampler::AlwaysOff));
        let on = FollowLinks(Box::new(Sampler::AlwaysOn));
        let (yes, no) = (TraceFlags::SAMPLED, TraceFlags::default());
        let decide = |sampler: &FollowLinks, parent: Option<TraceFlags>, links: &[TraceFlags]| {
            let parent =
                parent.map(|flags| Context::new().with_remote_span_context(context(flags)));
            let links: Vec<Link> = links
                .iter()
                .map(|&flags| Link::with_context(context(flags)))
                .collect();
            let kind = SpanKind::Consumer;
            let result = sampler.should_sample(
                parent.as_ref(),
                TraceId::from(9),
                "process orders",
                &kind,
                &[],
                &links,
            );
            result.decision == SamplingDecision::RecordAndSample
        };
        assert!(decide(&off, None, &[yes]) && decide(&off, None, &[no, yes]));
        assert!(!decide(&on, None, &[no, no]));
        assert!(decide(&on, None, &[]) && !decide(&off, None, &[]));
        assert!(decide(&on, Some(no), &[no]), "the standard sampler decides");
        assert!(!decide(&off, Some(yes), &[yes]));
    }

    #[test]
    fn a_mistake_names_its_variable() {
        assert_eq!(mistake(None, None), None);
        assert_eq!(mistake(Some("always_off"), Some("what")), None);
        for ratio in ["0", "0.1", "1"] {
            assert_eq!(mistake(Some("parentbased_traceidratio"), Some(ratio)), None);
        }
        for ratio in [None, Some("ten"), Some("1.1"), Some("NaN")] {
            let why = mistake(Some("traceidratio"), ratio).unwrap();
            assert!(why.starts_with("OTEL_TRACES_SAMPLER_ARG is "), "{why}");
        }
        let why = mistake(Some("parentbased_jaeger_remote"), None).unwrap();
        assert!(why.starts_with("OTEL_TRACES_SAMPLER is parentbased_jaeger_remote"));
    }
}
