//! The cost of the append-only file.

use lisa_tests::Aof;

use crate::cases::{Case, Stage, compare};
use crate::lab::{self, Lab};
use crate::report::Report;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(30_000, 5_000);
    let everysec = lab.beside(lab::settings(Aof::EverySec).start()).await;
    let always = lab.beside(lab::settings(Aof::Always).start()).await;
    let cases = [
        Case::plain("no append-only file", lab),
        Case::plain("everysec", &everysec),
        Case::plain("always", &always),
    ];
    let stages = [Stage::Send, Stage::Drain, Stage::All];
    let results = compare(lab, &cases, &stages, n).await;
    report.section(results.section(
        "Durability",
        "100 B; one server per setting, used one at a time. With `always` the rate is that of the \
             disk below the temporary directory. Server time is that of the main thread.",
    ));
}
