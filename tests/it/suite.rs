//! The treatment of flaky tests in CI: `tests/suite.sh`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A folder with a list of marked tests, and a `cargo` with answers that a test sets.
struct Ci {
    dir: TempDir,
}

impl Ci {
    fn new(alone: &str, marked: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let cargo = dir.path().join("cargo");
        fs::write(&cargo, format!("#!/bin/sh\ncat <<'END'\n{alone}\nEND\n")).expect("written");
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("set");
        fs::write(dir.path().join("marked"), marked).expect("written");
        Self { dir }
    }

    fn suite(&self, arguments: &[&str]) -> Output {
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{}:{path}", self.dir.path().display());
        let mut suite = Command::new("bash");
        suite
            .arg(here("suite.sh"))
            .args(arguments)
            .env("PATH", path);
        suite.env("LISA_SUITE_NOTES", self.dir.path().join("notes"));
        suite.env("LISA_TIMING_SENSITIVE", self.dir.path().join("marked"));
        suite.output().expect("bash runs")
    }

    /// Runs a command that prints this and fails.
    fn run(&self, printed: &str) -> bool {
        let command = format!("cat <<'END'\n{printed}\nEND\nexit 101");
        self.suite(&["run", "sh", "-c", &command]).status.success()
    }

    /// Returns the final report, and whether the run passes.
    fn report(&self) -> (bool, String) {
        let said = self.suite(&["report"]);
        let text = String::from_utf8(said.stdout).expect("text");
        (said.status.success(), text)
    }
}

const FIRST: &str = "test a::race ... FAILED\ntest b ... ok\n\nfailures:\n\n---- a::race stdout ----\n\
    took 7 s\n\nfailures:\n    a::race\n";

#[test]
fn two_tests_that_pass_only_alone_are_shown_with_their_first_failure_and_three_fail_the_run() {
    let ci = Ci::new("test a::race ... ok", "# none\n");
    for expected in [true, true, false] {
        assert!(ci.run(FIRST), "the run goes on");
        let (good, said) = ci.report();
        assert_eq!(good, expected, "{said}");
        assert!(said.contains("failed, and passed alone: a::race"), "{said}");
        assert!(said.contains("| took 7 s"), "{said}");
    }
}

#[test]
fn a_test_of_a_promise_that_passes_only_alone_fails_the_run() {
    for area in ["model", "scripts", "reshard", "faults", "scenarios"] {
        let of_promise = |text: &str| text.replace("a::race", &format!("{area}::race"));
        let ci = Ci::new(&of_promise("test a::race ... ok"), "# none\n");
        assert!(ci.run(&of_promise(FIRST)), "the run goes on");
        assert!(!ci.report().0, "{area}");
    }
}

#[test]
fn a_marked_test_is_listed_with_its_reason_and_what_was_skipped_is_named() {
    let ci = Ci::new("test a::race ... ok", "a::race: it measures\n");
    assert!(ci.run(FIRST));
    fs::write(ci.dir.path().join("notes/skipped"), "advisories\n").expect("written");
    let (good, said) = ci.report();
    assert!(good, "{said}");
    assert!(said.contains("== SKIPPED: advisories"), "{said}");
    assert!(said.contains("timing-sensitive: it measures"), "{said}");
    assert!(said.contains("| took 7 s"), "{said}");
}

#[test]
fn a_test_that_fails_alone_too_or_is_not_found_or_is_one_of_many_ends_the_run() {
    for alone in ["test a::race ... FAILED", "running 0 tests"] {
        assert!(
            !Ci::new(alone, "a::race: it measures\n").run(FIRST),
            "{alone}"
        );
    }
    let names = ["a", "b", "c", "d", "e", "f"];
    let many = names
        .map(|name| format!("test {name} ... FAILED"))
        .join("\n");
    assert!(!Ci::new(&many.replace("FAILED", "ok"), "").run(&many));
    assert!(!Ci::new("", "").run("error: could not compile"));
}

#[test]
fn each_test_that_is_marked_as_timing_sensitive_exists_and_has_a_reason() {
    let this = std::env::current_exe().expect("a path");
    let list = Command::new(this).arg("--list").output().expect("it runs");
    let list = String::from_utf8(list.stdout).expect("text");
    let marked = fs::read_to_string(here("timing-sensitive.txt")).expect("it is there");
    let lines = marked.lines().filter(|line| !line.starts_with('#'));
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, reason) = line.split_once(": ").expect(line);
        assert!(!reason.is_empty(), "{name} has no reason");
        let listed = format!("{name}: test");
        assert!(list.lines().any(|line| line == listed), "no test {name}");
    }
}
