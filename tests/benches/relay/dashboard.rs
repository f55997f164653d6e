//! The cost of the dashboard, and of the calls of operators that it uses: the real manager, over HTTP.

mod pages;
mod tabs;

use crate::lab::Lab;
use crate::report::Report;

/// The name of the manager's connections.
const MANAGER: &str = "lisa-manager";

/// Measures the pages of a topic with a large backlog, then many tabs over many topics.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    pages::run(lab, report).await;
    tabs::run(lab, report).await;
}
