//! Hostile text made harmless and readable: control characters, JSON, shell words, parts of paths.
//!
//! Payloads, headers, keys, ids, names and errors come from strangers. They only ever become text nodes; maud escapes them.

use std::fmt::Write as _;

use maud::{Markup, html};

/// The most levels that JSON is indented by: deeper ones would multiply its size.
const MAX_INDENT: usize = 24;

/// Returns text with its control and bidirectional characters spelled out, such as `U+202E`.
pub(super) fn visible(text: &str) -> Markup {
    shown(text, |_| false)
}

/// Returns text of several lines in the same way. Keeps line feeds and tabs.
pub(super) fn visible_lines(text: &str) -> Markup {
    shown(text, |c| c == '\n' || c == '\t')
}

/// Returns text for an attribute, in which there are no elements: like [`visible`], with each such character spelled out.
pub(super) fn spelled_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match hides(c) {
            true => out.push_str(&code_point(c)),
            false => out.push(c),
        }
    }
    out
}

/// Returns the name of a character, such as `U+202E`.
fn code_point(c: char) -> String {
    format!("U+{:04X}", u32::from(c))
}

fn shown(text: &str, is_kept: impl Fn(char) -> bool) -> Markup {
    let mut pieces: Vec<(&str, Option<char>)> = Vec::new();
    let mut rest = text;
    let hides = |c: char| !is_kept(c) && hides(c);
    while let Some(at) = rest.find(hides) {
        let hidden = rest[at..].chars().next();
        pieces.push((&rest[..at], hidden));
        rest = &rest[at + hidden.map_or(0, char::len_utf8)..];
    }
    html! {
        @for (plain, hidden) in pieces {
            (plain)
            @if let Some(hidden) = hidden {
                span.ctl { (code_point(hidden)) }
            }
        }
        (rest)
    }
}

/// Returns true for a character that is invisible, or changes the order of the text around it.
fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns JSON indented by two spaces a level; `None` if the text is not JSON. Keeps every token byte for byte: large
/// numbers, the order of keys, and keys that occur twice.
pub(super) fn indented_json(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut out = String::with_capacity(text.len() * 2);
    let mut depth: usize = 0;
    let (mut is_string, mut is_escaped) = (false, false);
    let mut chars = text.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        for _ in 0..depth.min(MAX_INDENT) {
            out.push_str("  ");
        }
    };
    while let Some(c) = chars.next() {
        if is_string {
            out.push(c);
            is_string = is_escaped || c != '"';
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            ' ' | '\t' | '\n' | '\r' => {}
            '"' => {
                out.push(c);
                is_string = true;
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(end) = chars.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c => out.push(c),
        }
    }
    Some(out)
}

/// Returns bytes as rows of 16 with their offset, and the printable ASCII beside them.
pub(super) fn hex_dump(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (row, bytes) in bytes.chunks(16).enumerate() {
        let _ = write!(out, "{:06x}  ", row * 16);
        for at in 0..16 {
            match bytes.get(at) {
                Some(byte) => {
                    let _ = write!(out, "{byte:02x} ");
                }
                None => out.push_str("   "),
            }
        }
        out.push(' ');
        let printable = |byte: &u8| match byte {
            0x20..=0x7e => char::from(*byte),
            _ => '.',
        };
        out.extend(bytes.iter().map(printable));
        out.push('\n');
    }
    out
}

/// Returns a word for a shell, quoted if it needs to be.
///
/// A terminal acts on control characters in pasted text, even between quotes, and invisible ones hide what a command does. A word
/// with such a character is written as `$'…'`, with the bytes of the character in octal. POSIX has had this quoting since
/// 2024; bash, zsh, ksh and busybox had it before.
pub(super) fn shell(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    if !word.contains(|c| c != '\n' && hides(c)) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut out = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if hides(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
            c => out.push(c),
        }
    }
    out + "'"
}

/// Returns text as one part of a path or the value of a query, percent-encoded.
pub(super) fn part(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Returns a number with commas between its thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a number of messages.
pub(super) fn messages(number: u64) -> String {
    counted(number, "message")
}

/// Returns a number of things, whose plural ends in `s`.
pub(super) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// Returns a size with a unit of 1024.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value >= 100.0 => format!("{value:.0} {}", UNITS[unit]),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Returns the duration of so many milliseconds in at most two units, as people say it: `850 ms`, `42 s`, `3 min 5 s`.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    let two = |big: u64, one: &str, small: u64, other: &str| match small {
        0 => format!("{big} {one}"),
        _ => format!("{big} {one} {small} {other}"),
    };
    match seconds {
        0 => format!("{ms} ms"),
        1..=59 => format!("{seconds} s"),
        60..=599 => two(seconds / 60, "min", seconds % 60, "s"),
        600..=3599 => format!("{} min", seconds / 60),
        3600..=86_399 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        86_400..=864_000 => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
        _ => format!("{} d", grouped(seconds / 86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_escaped_and_its_invisible_characters_are_spelled_out() {
        let shown = visible("<img src=x onerror=alert(1)>\u{202e}a\n").into_string();
        assert_eq!(
            shown,
            "&lt;img src=x onerror=alert(1)&gt;<span class=\"ctl\">U+202E</span>a<span class=\"ctl\">U+000A</span>"
        );
        let lines = visible_lines("a\n\tb\u{0}").into_string();
        assert_eq!(lines, "a\n\tb<span class=\"ctl\">U+0000</span>");
        assert_eq!(visible("Größe ⚙ ok").into_string(), "Größe ⚙ ok");
    }

    #[test]
    fn json_is_indented_and_kept_byte_for_byte() {
        let json = r#"{"b":9007199254740993, "a" : [1.10,"x,{}\"y" , {}, [ ]],"b":1e400}"#;
        let expected = "{\n  \"b\": 9007199254740993,\n  \"a\": [\n    1.10,\n    \"x,{}\\\"y\",\n    {},\n    []\n  ],\n  \"b\": 1e400\n}";
        assert_eq!(indented_json(json).as_deref(), Some(expected));
        for other in ["", "{", "{} {}", "nonsense", "{'a':1}"] {
            assert_eq!(indented_json(other), None, "{other}");
        }
    }

    #[test]
    fn deep_json_does_not_multiply_its_size() {
        let deep = "[".repeat(8000) + "1" + &"]".repeat(8000);
        let indented = indented_json(&deep).expect("JSON");
        assert!(indented.len() < deep.len() * 60, "{}", indented.len());
    }

    #[test]
    fn words_survive_the_shell_and_parts_the_path() {
        assert_eq!(shell("orders"), "orders");
        assert_eq!(shell("it's $(x)"), r"'it'\''s $(x)'");
        assert_eq!(shell(""), "''");
        assert_eq!(part("a/b?c#ü"), "a%2Fb%3Fc%23%C3%BC");
    }

    #[test]
    fn text_of_an_attribute_has_no_hidden_characters() {
        let spelled = spelled_out("a\u{202e}b\u{9b}\n<ü>");
        assert_eq!(spelled, "aU+202EbU+009BU+000A<ü>");
    }

    #[test]
    fn a_copied_word_has_no_character_that_a_terminal_acts_on_and_a_shell_reads_it_back() {
        assert_eq!(shell("{\n  1\n}"), "'{\n  1\n}'");
        assert_eq!(shell("a\u{202e}b"), r"$'a\342\200\256b'");
        for word in [
            "it's\\ \u{202e}7",
            "\u{3}\u{15}rm -rf ~\r\n\t",
            "\u{1b}[2J\u{9b}2J",
            "ü\u{200b}$(x)`y`\"!",
        ] {
            let quoted = shell(word);
            assert!(!quoted.contains(hides), "{quoted:?}");
            let mut bash = std::process::Command::new("bash");
            let said = bash.args(["-c", &format!("printf %s {quoted}")]).output();
            assert_eq!(String::from_utf8_lossy(&said.unwrap().stdout), word);
        }
    }

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!(
            [0, 999, 1000, 5_012_440].map(grouped),
            ["0", "999", "1,000", "5,012,440"]
        );
        assert_eq!([1, 2000].map(messages), ["1 message", "2,000 messages"]);
        assert_eq!(
            [31, 2048, 3_300_000_000].map(size),
            ["31 B", "2.0 KiB", "3.1 GiB"]
        );
        let spans = [7, 42_000, 185_000, 1_800_000, 7_260_000, 93_600_000].map(span);
        assert_eq!(
            spans,
            [
                "7 ms",
                "42 s",
                "3 min 5 s",
                "30 min",
                "2 h 1 min",
                "1 d 2 h"
            ]
        );
    }

    #[test]
    fn a_dump_shows_offsets_bytes_and_ascii() {
        let dump = hex_dump(b"\x00abcdefghijklmnop");
        assert!(dump.starts_with("000000  00 61 62"), "{dump}");
        assert!(dump.contains(" .abcdefghijklmno\n000010  70"), "{dump}");
    }
}
