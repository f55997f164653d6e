//! The CPU time of a whole server: all threads of a process and of its descendants.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;

/// The threads of a server seen so far. Those that have ended count with their last known time.
pub(crate) struct Cpu {
    root: u32,
    seen: RefCell<HashMap<u32, f64>>,
}

impl Cpu {
    /// Watches a process.
    pub(crate) fn of(root: u32) -> Self {
        Self {
            root,
            seen: RefCell::default(),
        }
    }

    /// CPU seconds so far.
    pub(crate) fn seconds(&self) -> Result<f64, String> {
        let mut seen = self.seen.borrow_mut();
        let mut processes = vec![self.root];
        while let Some(process) = processes.pop() {
            let tasks = format!("/proc/{process}/task");
            let entries = match fs::read_dir(&tasks) {
                Ok(entries) => entries,
                Err(error) if process == self.root => return Err(format!("{tasks}: {error}")),
                // A child that has just ended.
                Err(_) => continue,
            };
            for task in entries.flatten() {
                let read = |name: &str| fs::read_to_string(task.path().join(name));
                let id = task.file_name().to_string_lossy().parse();
                let (Ok(id), Ok(schedstat)) = (id, read("schedstat")) else {
                    continue;
                };
                if let Some(on_cpu) = first(&schedstat) {
                    seen.insert(id, on_cpu / 1e9);
                }
                let children = read("children").unwrap_or_default();
                processes.extend(
                    children
                        .split_whitespace()
                        .filter_map(|pid| pid.parse::<u32>().ok()),
                );
            }
        }
        Ok(seen.values().sum())
    }
}

fn first(schedstat: &str) -> Option<f64> {
    schedstat.split_whitespace().next()?.parse().ok()
}
