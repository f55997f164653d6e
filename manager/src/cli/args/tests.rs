//! Tests of the arguments.

use clap::CommandFactory;
use lisa_core::fields::Description;

use super::*;
use crate::cli::operator::GarbageVerb;

#[test]
fn garbage_is_also_called_dead_letters_and_dlq() {
    for verb in ["garbage", "dead-letters", "dlq"] {
        let cli = Cli::try_parse_from(["lisa-manager", verb, "list", "orders"]).unwrap();
        let listed = matches!(
            cli.verb,
            Verb::Operator(OperatorVerb::Garbage(GarbageVerb::List(_)))
        );
        assert!(listed, "{verb}");
    }
    let help = Cli::command().render_help().to_string();
    assert!(help.contains("[aliases: dead-letters, dlq]"), "{help}");
}

#[test]
fn the_options_of_a_verb_stand_before_the_global_ones() {
    let mut cli = Cli::command();
    cli.clone().debug_assert();
    cli.build();
    let run = cli.find_subcommand_mut("run").unwrap();
    let help = run.render_help().to_string();
    let position = |option: &str| help.find(option).expect(option);
    assert!(position("--listen") < position("Global options:"), "{help}");
    assert!(position("Global options:") < position("--config"), "{help}");
}

#[test]
fn the_limits_of_a_garbage_job_are_those_of_its_request() {
    let parse = |limit: &str| {
        let words = ["lisa-manager", "garbage", "purge", "orders", limit];
        Cli::try_parse_from(words)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    for good in ["--max=1", "--rate=1", "--rate=10000"] {
        assert_eq!(parse(good), Ok(()), "{good}");
    }
    for (bad, allowed) in [
        ("--max=0", "must be at least 1"),
        ("--rate=10001", "must be 1 to 10000"),
    ] {
        let error = parse(bad).unwrap_err();
        assert!(error.contains(allowed), "{error}");
    }
    let mut cli = Cli::command();
    cli.build();
    let garbage = cli.find_subcommand_mut("garbage").unwrap();
    let help = garbage.find_subcommand_mut("purge").unwrap();
    let help = help.render_help().to_string();
    for limit in Description::all::<JobLimits>() {
        assert!(help.contains(limit.meaning.trim_end_matches('.')), "{help}");
    }
}
