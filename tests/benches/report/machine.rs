//! The place and time of a run, and the share of the processor that the host took away meanwhile.

use std::fs;

/// The lines that stand above the tables of a run: command, date, machine.
pub(crate) fn facts(command: &str) -> Vec<(String, String)> {
    let now = jiff::Zoned::now();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let mut facts = vec![
        ("command".to_owned(), format!("`{command}`")),
        (
            "date".to_owned(),
            now.strftime("%Y-%m-%d %H:%M %Z").to_string(),
        ),
        (
            "machine".to_owned(),
            format!("{}, {cores} cores", processor()),
        ),
    ];
    if let Some(gib) = memory_gib() {
        facts.push(("memory".to_owned(), format!("{gib:.0} GiB")));
    }
    let system = std::env::consts::OS;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    facts.push(("system".to_owned(), format!("{system} {}", kernel.trim())));
    facts
}

/// The activity of the host's scheduler since it was created: on a shared host, the time that went to others.
pub(crate) struct Steal {
    before: Option<(u64, u64)>,
}

impl Steal {
    /// Starts to watch.
    pub(crate) fn start() -> Self {
        Self { before: ticks() }
    }

    /// The percentage of all processor time that was stolen since; `None` where the system does not report it.
    pub(crate) fn percent(&self) -> Option<f64> {
        let (stolen, total) = (self.before?, ticks()?);
        let elapsed = total.1.saturating_sub(stolen.1).max(1);
        Some(100.0 * total.0.saturating_sub(stolen.0) as f64 / elapsed as f64)
    }
}

/// Stolen and all ticks of all processors since the boot.
fn ticks() -> Option<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let all: Vec<u64> = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|ticks| ticks.parse().ok())
        .collect();
    Some((*all.get(7)?, all.iter().sum()))
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
    model.unwrap_or_else(|| format!("unnamed {} processor", std::env::consts::ARCH))
}

fn memory_gib() -> Option<f64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = total.split_whitespace().next()?.parse().ok()?;
    Some(kib / (1024.0 * 1024.0))
}
