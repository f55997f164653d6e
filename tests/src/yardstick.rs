//! The speed of scripts on this machine now: time limits of scripts scale with it.

use crate::Relay;
use redis::cmd;

/// The typical work of a script, 500 times.
const SCRIPT: &str =
    "for n = 1, 500 do redis.call('HSET', KEYS[1], n % 100, cmsgpack.pack(n, 'k')) end";
/// The time of that work on the machine that limits are meant for, in µs.
const TAKES: u64 = 600;

/// Returns how many times slower than intended the best of a few scripts was; never below 1. Sets the server's slow log
/// to record everything, and empties it.
pub async fn slowness(relay: &Relay) -> f64 {
    let mut all = cmd("CONFIG");
    let () = relay
        .command(all.arg(&["SET", "slowlog-log-slower-than", "0"]))
        .await;
    let mut load = cmd("SCRIPT");
    let sha: String = relay.command(load.arg(&["LOAD", SCRIPT])).await;
    let key = relay.key("yardstick");
    let () = relay.command(cmd("SLOWLOG").arg("RESET")).await;
    for _ in 0..5 {
        let mut call = cmd("EVALSHA");
        let () = relay.command(call.arg(&sha).arg(1).arg(&key)).await;
    }
    let () = relay.command(cmd("DEL").arg(&key)).await;
    type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let calls: Vec<Call> = relay.command(cmd("SLOWLOG").arg(&["GET", "-1"])).await;
    let () = relay.command(cmd("SLOWLOG").arg("RESET")).await;
    let scripts = calls.iter().filter(|call| call.3[0] == b"EVALSHA");
    let best = scripts.map(|call| call.2).min().unwrap_or(TAKES);
    best.max(TAKES) as f64 / TAKES as f64
}
