//! The manager: its assignment, movers, jobs and recurring messages, ready to start in any process.
//!
//! It does not listen, and reads no configuration files; the binary and programs that embed a manager do.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use lisa_core::broker::{Broker, BrokerError, Declare, WorkerReport};
use lisa_core::connect::process_name;
use lisa_service::config::Config;
use lisa_service::http::Reads;
use lisa_service::http::auth::TokenSet;
use lisa_service::http::body::BodyLimits;
use lisa_service::metrics::Metrics;
use lisa_service::report;
use lisa_service::role::{self, Runtime, StartError};
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::Spans;
use lisa_service::supervise::{Policy, Supervisor};
use utoipa::openapi::OpenApi;

use crate::api::{self, Api, Via};
use crate::assignment::Assignments;
use crate::dashboard;
use crate::forwarder::Forwarder;
use crate::garbage_jobs::GarbageJobs;
use crate::jobs::scheduler::JobScheduler;
use crate::jobs::{self, Tools};
use crate::mover::Movers;
use crate::operations::doctor::Examinations;
use crate::operations::groups;
use crate::recurring::{self, Recurring, Sender, StoredSchedules};

/// A manager, started or not. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Manager {
    broker: Broker,
    config: Arc<Config>,
    assignments: Assignments,
    movers: Movers,
    schedule: JobScheduler,
    recurring: Vec<Recurring>,
    stored_schedules: StoredSchedules,
    forwarder: Forwarder,
    garbage_jobs: GarbageJobs,
    examinations: Arc<Examinations>,
    shutdown: Shutdown,
}

impl Manager {
    /// Creates a manager without starting it. Its name consists of the host, the process ID and a random part.
    pub fn new(
        broker: &Broker,
        metrics: &Metrics,
        spans: Option<&Spans>,
        shutdown: &Shutdown,
        config: &Config,
    ) -> Self {
        let assignments = Assignments::new(process_name(), broker.clone());
        let tools = Tools {
            broker: broker.clone(),
            metrics: metrics.clone(),
            assignments: assignments.clone(),
            examinations: Arc::default(),
            wakes: Arc::default(),
            draining: shutdown.draining().clone(),
        };
        let sender = Sender::new(broker, metrics, spans, config);
        Self {
            movers: Movers {
                broker: broker.clone(),
                metrics: metrics.clone(),
                assignments: assignments.clone(),
                wakes: tools.wakes.clone(),
            },
            schedule: jobs::schedule(&tools, &config.manager, shutdown),
            forwarder: Forwarder::new(&tools),
            garbage_jobs: GarbageJobs {
                broker: broker.clone(),
                assignments: assignments.clone(),
                changed: Arc::default(),
            },
            recurring: Recurring::of_topics(&sender, &assignments, config),
            stored_schedules: StoredSchedules {
                sender,
                config: Arc::new(config.clone()),
                changed: Arc::default(),
            },
            assignments,
            examinations: tools.examinations.clone(),
            broker: broker.clone(),
            config: Arc::new(config.clone()),
            shutdown: shutdown.clone(),
        }
    }

    /// Creates a manager from the runtime of a role.
    pub fn of(runtime: &Runtime) -> Self {
        Self::new(
            &runtime.broker,
            &runtime.metrics,
            runtime.spans.as_ref(),
            &runtime.shutdown,
            &runtime.config,
        )
    }

    /// Returns the manager's name.
    pub fn name(&self) -> &str {
        self.assignments.name()
    }

    /// Returns the manager's assignment.
    pub fn assignments(&self) -> &Assignments {
        &self.assignments
    }

    /// Returns the scheduler of the manager's jobs.
    pub fn schedule(&self) -> &JobScheduler {
        &self.schedule
    }

    /// Returns the routes of the HTTP interface and their OpenAPI description, to serve with or without those of another
    /// role. `reads` bounds all routes of the process that only read.
    pub fn api(&self, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
        api::routes(self.api_state(Via::Http, tokens, reads), tokens)
    }

    /// Returns the route that shows one message, for a listener without a producer's routes, which include it.
    pub fn message_api(&self, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
        api::message_route(self.api_state(Via::Http, tokens, reads), tokens)
    }

    /// Returns all routes, for the command line of this process. `is_managers_config` is true if it has the managers' configuration.
    pub(crate) fn command_line_api(&self, is_managers_config: bool) -> Router {
        let (tokens, reads) = (TokenSet::default(), Reads::default());
        api::unlimited(Api {
            is_managers_config,
            ..self.api_state(Via::CommandLine, &tokens, &reads)
        })
    }

    /// Returns the pages of the dashboard, to serve at `/` next to the other routes, or on a listener of their own.
    /// `has_producer` is true if the same address has the producer's routes. The configuration decides whether to serve them.
    ///
    /// # Errors
    /// The key of the sessions cannot be used.
    pub fn dashboard(&self, tokens: &TokenSet, has_producer: bool) -> Result<Router, StartError> {
        let parts = dashboard::Parts {
            broker: self.broker.clone(),
            config: self.config.clone(),
            assignments: self.assignments.clone(),
            schedule: self.schedule.clone(),
            examinations: self.examinations.clone(),
            has_producer,
            garbage_jobs_changed: self.garbage_jobs.changed.clone(),
            stored_schedules: self.stored_schedules.clone(),
        };
        dashboard::routes(parts, tokens).map_err(|error| StartError::Refused(error.to_string()))
    }

    fn api_state(&self, via: Via, tokens: &TokenSet, reads: &Reads) -> Api {
        Api {
            via,
            broker: self.broker.clone(),
            assignments: self.assignments.clone(),
            schedule: self.schedule.clone(),
            garbage_jobs_changed: self.garbage_jobs.changed.clone(),
            stored_schedules: self.stored_schedules.clone(),
            examinations: self.examinations.clone(),
            config: self.config.clone(),
            is_managers_config: true,
            tokens: tokens.clone(),
            bodies: BodyLimits::new(self.config.http.body_timeout),
            reads: reads.clone(),
            shutdown: self.shutdown.clone(),
        }
    }

    /// Declares the configured topics, whose settings override those in Redis. Retries while Redis is unavailable, until the
    /// shutdown begins. Logs a warning for each group in Redis that the configuration does not name.
    ///
    /// # Errors
    /// A topic cannot be declared as configured.
    pub async fn declare(&self) -> Result<(), BrokerError> {
        let topics = &self.config.topics;
        role::declare_topics(&self.broker, topics, Declare::Update, &self.shutdown).await?;
        for handle in topics.keys().filter_map(|topic| self.broker.known(topic)) {
            groups::warn_unconfigured(&self.broker, &handle).await;
        }
        recurring::take_over(&self.broker, &self.config).await
    }

    /// Starts the movers, the jobs and the recurring messages, which run until the shutdown begins.
    pub fn start(&self, supervisor: &Supervisor) {
        let (assignments, shutdown) = (self.assignments.clone(), self.shutdown.clone());
        supervisor.spawn("assignment", Policy::restart(), move |heartbeat| {
            let (assignments, shutdown) = (assignments.clone(), shutdown.clone());
            async move { assignments.keep(heartbeat, &shutdown).await }
        });
        let (movers, shutdown) = (self.movers.clone(), self.shutdown.clone());
        supervisor.spawn("movers", Policy::restart(), move |heartbeat| {
            let (movers, shutdown) = (movers.clone(), shutdown.clone());
            async move { movers.keep(heartbeat, &shutdown).await }
        });
        let (schedule, shutdown) = (self.schedule.clone(), self.shutdown.clone());
        supervisor.spawn("schedule", Policy::restart(), move |heartbeat| {
            let (schedule, shutdown) = (schedule.clone(), shutdown.clone());
            async move { schedule.keep(heartbeat, &shutdown).await }
        });
        let (garbage_jobs, shutdown) = (self.garbage_jobs.clone(), self.shutdown.clone());
        supervisor.spawn("garbage_jobs", Policy::restart(), move |heartbeat| {
            let (garbage_jobs, shutdown) = (garbage_jobs.clone(), shutdown.clone());
            async move { garbage_jobs.keep(heartbeat, &shutdown).await }
        });
        let (forwarder, shutdown) = (self.forwarder.clone(), self.shutdown.clone());
        supervisor.spawn("forwarder", Policy::restart(), move |heartbeat| {
            let (forwarder, shutdown) = (forwarder.clone(), shutdown.clone());
            async move { forwarder.keep(heartbeat, &shutdown).await }
        });
        let (schedules, shutdown) = (self.stored_schedules.clone(), self.shutdown.clone());
        supervisor.spawn("recurring", Policy::restart(), move |heartbeat| {
            let (schedules, shutdown) = (schedules.clone(), shutdown.clone());
            async move { schedules.keep(heartbeat, &shutdown).await }
        });
        let assignments = self.assignments.clone();
        let fill = move |report: &mut WorkerReport| report.shards = assignments.now().by_topic();
        let (broker, name) = (&self.broker, self.name());
        report::start(supervisor, &self.shutdown, broker, "manager", name, fill);
        for recurring in &self.recurring {
            let (recurring, shutdown) = (recurring.clone(), self.shutdown.clone());
            let name = format!("recurring:{}", recurring.topic());
            supervisor.spawn(name, Policy::restart(), move |heartbeat| {
                let (recurring, shutdown) = (recurring.clone(), shutdown.clone());
                async move {
                    recurring.keep_alone(heartbeat, &shutdown).await;
                    Ok::<(), Infallible>(())
                }
            });
        }
    }
}
