//! The list of planted bugs, `tests/mutants.sh`: each of them fits the scripts as they are now. `make mutants` finds
//! out whether tests catch them.

use lisa_tests::Server;
use lisa_tests::scripts::{all, shared};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn mutants(flag: &str) -> Output {
    let mut list = Command::new("bash");
    list.arg(here("mutants.sh")).arg(flag);
    list.output().expect("bash runs")
}

#[test]
fn the_text_of_each_planted_bug_occurs_once_in_its_script() {
    let checked = mutants("--check");
    let faults = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{faults}");
}

#[tokio::test]
async fn each_planted_bug_leaves_a_script_that_redis_can_load() {
    let list = String::from_utf8(mutants("--list").stdout).expect("text");
    let mut connection = Server::shared().connection().await;
    let scripts: BTreeMap<String, String> = all().into_iter().chain(shared()).collect();
    for line in list.lines() {
        let parts: Vec<String> = line
            .split('|')
            .map(|part| part.replace("\\n", "\n"))
            .collect();
        let [name, file, from, to] = &parts[..] else {
            panic!("not of four parts: {line}");
        };
        let script = &scripts[file.trim_end_matches(".lua")];
        // Only the syntax counts, so that a script may lack what comes before it.
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script.replacen(from, to, 1));
        let loaded: Result<String, _> = load.query_async(&mut connection).await;
        loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
