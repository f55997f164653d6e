//! Tests of the arguments.

use clap::CommandFactory;

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
