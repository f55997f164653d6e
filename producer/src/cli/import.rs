//! `import`: sends the lines of a file in constant memory. Safe to repeat.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lisa_core::broker::MAX_SEND_BATCH;
use lisa_core::state::SendOutcome;
use lisa_service::cli::{Output, remark};
use lisa_service::http::Problem;
use lisa_service::http::body::{BodyError, BodyLimits, Lines};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use super::commands::{io_error, print, suggest_topic};
use super::{CliError, ImportArgs};
use crate::batch_line;
use crate::http::{problem, standing};
use crate::message::NewMessage;
use crate::producer::Producer;

const CHUNK: usize = 64 * 1024;
/// The time limit for a line. A file needs none, and standard input may be a terminal.
const LINE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Sends every line. Returns exit code 0, or 1 if lines were refused.
pub(super) async fn run(
    producer: &Producer,
    args: &ImportArgs,
    output: &Output,
) -> Result<u8, CliError> {
    let limit = producer.max_payload(&args.topic).await;
    let limit = suggest_topic(producer, limit).await?;
    let (body, bar) = open(&args.file).await?;
    let mut import = Import {
        producer,
        args,
        lines: Lines::new(
            body,
            batch_line::longest(limit),
            &BodyLimits::new(LINE_TIMEOUT),
        ),
        bar,
        counts: Counts::default(),
        refused: Refused::new(args),
        first_refused: None,
    };
    let mut first = args.from_line;
    loop {
        match import.step().await {
            Ok(Some(last)) => first = last + 1,
            Ok(None) => break,
            Err(source) => {
                import.bar.abandon();
                let _ = import.refused.close();
                return Err(stopped(args, first, source));
            }
        }
    }
    import.bar.finish_and_clear();
    if let Some(first) = &import.first_refused {
        remark(format_args!("refused: {first}"));
    }
    let refused = import.refused.close()?;
    report(import.counts, refused, output)
}

#[derive(Clone, Copy, Default)]
struct Counts {
    lines: u64,
    accepted: u64,
    /// Included in `accepted`.
    merged: u64,
    duplicates: u64,
    refused: u64,
}

struct Import<'a> {
    producer: &'a Producer,
    args: &'a ImportArgs,
    lines: Lines,
    bar: ProgressBar,
    counts: Counts,
    refused: Refused,
    /// The first refused line, with the reason.
    first_refused: Option<String>,
}

impl Import<'_> {
    /// Sends the next lines. Returns the number of the last one, or `None` at the end.
    async fn step(&mut self) -> Result<Option<u64>, CliError> {
        let mut messages = Vec::new();
        let mut texts = Vec::new();
        let mut bytes = 0;
        let mut last = None;
        while texts.len() < MAX_SEND_BATCH && bytes < 1024 * 1024 {
            let line = match self.lines.next().await {
                None => break,
                Some(Ok(line)) => line,
                Some(Err(error @ BodyError::LineTooLong { line: number, .. })) => {
                    if number >= self.args.from_line {
                        last = Some(number);
                        self.counts.lines += 1;
                        self.refuse(number, &Problem::from(error), None)?;
                    }
                    continue;
                }
                Some(Err(error)) => {
                    let what = self.args.file.display().to_string();
                    return Err(io_error(&what)(std::io::Error::other(error)));
                }
            };
            self.bar.inc(line.len() as u64 + 1);
            let number = self.lines.number();
            if number < self.args.from_line {
                continue;
            }
            last = Some(number);
            self.counts.lines += 1;
            match batch_line::parse(&line, || Some(id(self.args, number, &line))) {
                Ok(message) => {
                    bytes += line.len();
                    messages.push(message);
                    texts.push((number, line));
                }
                Err(problem) => self.refuse(number, &problem, Some(&line))?,
            }
        }
        self.send(messages, texts).await?;
        Ok(last)
    }

    async fn send(
        &mut self,
        messages: Vec<NewMessage>,
        texts: Vec<(u64, Bytes)>,
    ) -> Result<(), CliError> {
        if messages.is_empty() {
            return Ok(());
        }
        let results = self.producer.send_batch(&self.args.topic, messages).await?;
        for (result, (number, text)) in results.into_iter().zip(texts) {
            match result {
                Ok(receipt) => match standing(receipt) {
                    Ok(receipt) if receipt.outcome == SendOutcome::Duplicate => {
                        self.counts.duplicates += 1;
                    }
                    Ok(receipt) => {
                        self.counts.accepted += 1;
                        self.counts.merged += u64::from(receipt.outcome == SendOutcome::Merged);
                    }
                    Err(problem) => self.refuse(number, &problem, Some(&text))?,
                },
                // Redis is at fault, not the line.
                Err(error) if !error.is_about_the_message() => return Err(error.into()),
                Err(error) => {
                    let problem = problem(error);
                    self.refuse(number, &problem, Some(&text))?;
                }
            }
        }
        Ok(())
    }

    fn refuse(
        &mut self,
        number: u64,
        problem: &Problem,
        text: Option<&[u8]>,
    ) -> Result<(), CliError> {
        self.counts.refused += 1;
        self.first_refused
            .get_or_insert_with(|| format!("line {number}: {}", problem.detail()));
        self.refused.add(number, problem, text)
    }
}

/// Opens the file as a body, with a progress bar that is visible only if standard error is a terminal.
async fn open(path: &Path) -> Result<(Body, ProgressBar), CliError> {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if path == Path::new("-") {
        let reader = ReaderStream::with_capacity(tokio::io::stdin(), CHUNK);
        return Ok((Body::from_stream(reader), bar));
    }
    let name = path.display().to_string();
    let file = tokio::fs::File::open(path).await.map_err(io_error(&name))?;
    bar.set_length(file.metadata().await.map_err(io_error(&name))?.len());
    let style =
        ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.set_style(style.expect("the template is well-formed"));
    Ok((
        Body::from_stream(ReaderStream::with_capacity(file, CHUNK)),
        bar,
    ))
}

/// Returns the id for a line without one: always the same for the same line of the same file.
fn id(args: &ImportArgs, number: u64, line: &[u8]) -> String {
    let mut hash = Sha256::new();
    match (&args.name, args.file.file_name()) {
        (Some(name), _) => hash.update(name),
        (None, Some(name)) => hash.update(name.as_encoded_bytes()),
        (None, None) => {}
    }
    hash.update([0]);
    hash.update(number.to_be_bytes());
    hash.update(line);
    let hash = hash.finalize();
    let digits: String = hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("import-{digits}")
}

/// The file for refused lines, created with the first one.
struct Refused {
    path: PathBuf,
    /// True if an import is resumed, so that the refused lines of its first part are kept.
    append: bool,
    file: Option<BufWriter<File>>,
}

impl Refused {
    fn new(args: &ImportArgs) -> Self {
        let name = if args.file == Path::new("-") {
            Path::new("stdin")
        } else {
            &args.file
        };
        let mut path = name.as_os_str().to_owned();
        path.push(".refused.ndjson");
        Self {
            path: path.into(),
            append: args.from_line > 1,
            file: None,
        }
    }

    fn add(&mut self, number: u64, problem: &Problem, text: Option<&[u8]>) -> Result<(), CliError> {
        let name = self.path.display().to_string();
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                options
                    .create(true)
                    .write(true)
                    .append(self.append)
                    .truncate(!self.append);
                let file = options.open(&self.path).map_err(io_error(&name))?;
                none.insert(BufWriter::new(file))
            }
        };
        let text = text.map(String::from_utf8_lossy);
        let line = json!({ "line": number, "error": problem, "text": text });
        writeln!(file, "{line}").map_err(io_error(&name))
    }

    /// Flushes the file and returns its path, if there is one.
    fn close(self) -> Result<Option<PathBuf>, CliError> {
        let Some(mut file) = self.file else {
            return Ok(None);
        };
        file.flush()
            .map_err(io_error(&self.path.display().to_string()))?;
        Ok(Some(self.path))
    }
}

fn report(counts: Counts, refused: Option<PathBuf>, output: &Output) -> Result<u8, CliError> {
    let Counts {
        lines,
        accepted,
        merged,
        duplicates,
        refused: number,
    } = counts;
    let file = refused.map(|path| path.display().to_string());
    if !output.is_table() {
        output.object(&json!({
            "lines": lines, "accepted": accepted, "merged": merged, "duplicates": duplicates,
            "refused": number, "refused_file": file,
        }))?;
    } else {
        let file = file.map(|file| format!(", see {file}")).unwrap_or_default();
        let joined = match merged {
            0 => String::new(),
            _ => format!(" ({merged} merged)"),
        };
        print(&format!(
            "{lines} lines: {accepted} accepted{joined}, {duplicates} duplicates, {number} refused{file}"
        ))?;
    }
    Ok(u8::from(number > 0))
}

fn stopped(args: &ImportArgs, line: u64, source: CliError) -> CliError {
    let name = args
        .name
        .as_ref()
        .map(|name| format!(" --as {name}"))
        .unwrap_or_default();
    let (topic, file) = (&args.topic, args.file.display());
    CliError::Stopped {
        line,
        command: format!(
            "{} import {topic} {file} --from-line {line}{name}",
            super::program()
        ),
        source: Box::new(source),
    }
}
