//! The causes of an error, as text.

use std::error::Error;

/// Joins an error and its causes on one line: `cannot connect: connection refused`.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
