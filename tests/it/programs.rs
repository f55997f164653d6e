//! The verbs that every program has: completions and man pages.

use std::collections::BTreeSet;
use std::time::Duration;

use lisa_tests::{Binary, Launch};

/// The time limit of programs: they start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAMS: [Binary; 3] = [Binary::Manager, Binary::Producer, Binary::Consumer];

#[tokio::test]
async fn each_program_completes_its_verbs_in_each_shell() {
    for program in PROGRAMS {
        for shell in ["bash", "zsh", "fish"] {
            let printed = program.with(["completions", shell]).run(PATIENCE).await;
            assert_eq!(printed.code, Some(0), "{printed:?}");
            for word in [program.name(), "run", "man", "--config"] {
                // Fish has the names of options without their hyphens.
                let word = word.trim_start_matches('-');
                assert!(printed.stdout.contains(word), "{shell}: {word}");
            }
            if shell == "bash" {
                let check = Launch::new("bash", ["-n"]).stdin(printed.stdout);
                let check = check.run(PATIENCE).await;
                assert_eq!(check.code, Some(0), "{check:?}");
            }
        }
        let unknown = program.with(["completions", "cmd"]).run(PATIENCE).await;
        assert_eq!(unknown.code, Some(2), "{unknown:?}");
    }
}

#[tokio::test]
async fn each_program_writes_a_man_page_for_each_verb() {
    let dir = tempfile::tempdir().unwrap();
    for program in PROGRAMS {
        let pages = dir.path().join("man1");
        let written = program.with(["man", pages.to_str().unwrap()]);
        let written = written.run(PATIENCE).await;
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
