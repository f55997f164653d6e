//! Configuration files, TOML and YAML: a checked configuration that prints as an equivalent file, or a list of
//! problems. Neither repeats a secret.

#![no_main]

use std::cell::LazyCell;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::SECRET;
use lisa_service::config::{ConfigError, LoadOptions, Loaded};
use tempfile::TempDir;

/// The longest line that a problem may have. Names of keys are repeated whole.
const LONGEST_PROBLEM: usize = 64 * 1024;

thread_local! {
    static DIR: LazyCell<TempDir> = LazyCell::new(|| {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.expect("a directory")
    });
}

fn load(name: &str, text: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    DIR.with(|dir| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).expect("written");
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        Loaded::load(LoadOptions {
            file: Some(file),
            env: env.iter().map(owned).collect(),
            ..LoadOptions::default()
        })
    })
}

fn check(name: &str, text: &str, env: &[(&str, &str)]) -> Option<Loaded> {
    let (shown, loaded) = match load(name, text, env) {
        Ok(loaded) => (
            format!(
                "{}{}{:?}",
                loaded.to_toml(),
                loaded.to_json(),
                loaded.config
            ),
            Some(loaded),
        ),
        Err(error) => {
            assert!(!error.problems.is_empty());
            for problem in &error.problems {
                let line = problem.to_string();
                assert!(
                    !problem.message.is_empty() && !problem.source.is_empty(),
                    "{line:?}"
                );
                assert!(line.len() <= LONGEST_PROBLEM, "{} bytes", line.len());
            }
            (error.to_string(), None)
        }
    };
    assert!(!shown.contains(SECRET), "{shown}");
    loaded
}

fuzz_target!(|text: &str| {
    // Files named in the text would be read, and the system's endless ones have no end.
    if text.contains(SECRET) || text.contains("_file") {
        return;
    }
    let Some((format, text)) = text.split_at_checked(1) else {
        return;
    };
    let (name, secret) = match format {
        "t" => (
            "lisa.toml",
            format!("redis.password = \"{SECRET}\"\n{text}"),
        ),
        _ => ("lisa.yaml", format!("redis:\n  password: {SECRET}\n{text}")),
    };
    check(name, &secret, &[]);
    let url = format!("redis://user:{SECRET}@localhost");
    check(
        name,
        text,
        &[("LISA_REDIS__URL", &url), ("LISA_REDIS__PASSWORD", SECRET)],
    );
    if let Some(loaded) = check(name, text, &[]) {
        let written = loaded.to_toml();
        // A secret is written as stars, which are another secret, or none.
        if !written.contains("***") {
            let again = load("again.toml", &written, &[])
                .unwrap_or_else(|error| panic!("{error}\n{written}"));
            assert_eq!(again.config, loaded.config, "{written}");
        }
    }
});
