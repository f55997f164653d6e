//! The global options and the verbs that every program has: configuration, completions and man pages.

use std::collections::BTreeSet;

use lisa_tests::{Binary, Launch, SOON};

const PROGRAMS: [Binary; 3] = [Binary::Manager, Binary::Producer, Binary::Consumer];

#[tokio::test]
async fn each_program_completes_its_verbs_in_each_shell() {
    for program in PROGRAMS {
        for shell in ["bash", "zsh", "fish"] {
            let printed = program.with(["completions", shell]).run(SOON).await;
            assert_eq!(printed.code, Some(0), "{printed:?}");
            for word in [program.name(), "run", "man", "--config"] {
                // Fish has the names of options without their hyphens.
                let word = word.trim_start_matches('-');
                assert!(printed.stdout.contains(word), "{shell}: {word}");
            }
            if shell == "bash" {
                let check = Launch::new("bash", ["-n"]).stdin(printed.stdout);
                let check = check.run(SOON).await;
                assert_eq!(check.code, Some(0), "{check:?}");
            }
        }
        let unknown = program.with(["completions", "cmd"]).run(SOON).await;
        assert_eq!(unknown.code, Some(2), "{unknown:?}");
    }
}

#[tokio::test]
async fn each_program_writes_a_man_page_for_each_verb() {
    let dir = tempfile::tempdir().unwrap();
    for program in PROGRAMS {
        let pages = dir.path().join("man1");
        let written = program.with(["man", pages.to_str().unwrap()]);
        let written = written.run(SOON).await;
        assert_eq!(written.code, Some(0), "{written:?}");
    }
    let pages = std::fs::read_dir(dir.path().join("man1")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = pages.collect();
    for page in [
        "lisa-manager.1",
        "lisa-manager-garbage-requeue.1",
        "lisa-producer-send.1",
        "lisa-consumer-run.1",
    ] {
        assert!(pages.contains(page), "{page}: {pages:?}");
    }
}

#[tokio::test]
async fn all_programs_have_the_same_global_options_and_exit_codes() {
    let mut seen = BTreeSet::new();
    for program in PROGRAMS {
        let help = program.with(["--help"]).run(SOON).await.stdout;
        let (_, options) = help.split_once("Global options:").expect(&help);
        let codes = help.lines().find(|line| line.starts_with("Exit codes:"));
        assert!(options.contains("--output <OUTPUT>"), "{options}");
        // Only the commands of a manager also work through a manager.
        let shared = options.split("\n      --url <URL>").next();
        let shared = shared.unwrap_or_default().trim_end();
        seen.insert((shared.to_owned(), codes.expect(&help).to_owned()));
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test]
async fn each_program_checks_the_configuration() {
    let mut seen = BTreeSet::new();
    for program in PROGRAMS {
        for (namespace, code) in [("shop", 0), ("no spaces", 78)] {
            let line = [
                "config",
                "check",
                "--output",
                "json",
                "--namespace",
                namespace,
            ];
            let checked = program.with(line).run(SOON).await;
            assert_eq!(checked.code, Some(code), "{checked:?}");
            seen.insert(checked.stdout);
        }
        let shown = program.with(["config", "show", "--namespace", "shop"]);
        let shown = shown.run(SOON).await;
        assert!(shown.stdout.contains("namespace = \"shop\""), "{shown:?}");
    }
    let valid = "{\"valid\":true}\n".to_owned();
    assert_eq!(seen, BTreeSet::from([String::new(), valid]));
}
