//! The manager as a value: its share, movers, jobs and recurring messages, to be started in any process.
//!
//! Neither listens nor reads configuration files; the binary and programs that embed a manager do.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use lisa_shared::broker::{Broker, BrokerError, Declare};
use lisa_shared::config::Config;
use lisa_shared::http::Reads;
use lisa_shared::http::auth::TokenSet;
use lisa_shared::http::body::BodyLimits;
use lisa_shared::metrics::Metrics;
use lisa_shared::role::{self, Runtime};
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Policy, Supervisor};
use tokio::sync::Mutex;
use utoipa::openapi::OpenApi;

use crate::api;
use crate::groups;
use crate::jobs::{self, Tools};
use crate::mover::Movers;
use crate::recurring::Recurring;
use crate::schedule::Schedule;
use crate::share::Shares;

/// A manager that is not started yet, or runs: a cheap clone.
#[derive(Clone, Debug)]
pub struct Manager {
    broker: Broker,
    config: Arc<Config>,
    shares: Shares,
    movers: Movers,
    schedule: Schedule,
    recurring: Vec<Recurring>,
    examining: Arc<Mutex<()>>,
    shutdown: Shutdown,
}

impl Manager {
    /// Makes a manager; does nothing yet. Its name is made of the host, the process and chance.
    pub fn new(broker: &Broker, metrics: &Metrics, shutdown: &Shutdown, config: &Config) -> Self {
        let shares = Shares::new(role::process_name(), broker.clone());
        let tools = Tools {
            broker: broker.clone(),
            metrics: metrics.clone(),
            shares: shares.clone(),
            examining: Arc::default(),
            draining: shutdown.draining().clone(),
        };
        Self {
            movers: Movers {
                broker: broker.clone(),
                metrics: metrics.clone(),
                shares: shares.clone(),
            },
            schedule: jobs::schedule(&tools, &config.manager, shutdown),
            recurring: Recurring::of_topics(broker, metrics, &shares, config),
            shares,
            examining: tools.examining.clone(),
            broker: broker.clone(),
            config: Arc::new(config.clone()),
            shutdown: shutdown.clone(),
        }
    }

    /// Makes a manager of the pieces of a role.
    pub fn of(runtime: &Runtime) -> Self {
        Self::new(
            &runtime.broker,
            &runtime.metrics,
            &runtime.shutdown,
            &runtime.config,
        )
    }

    /// The name under which it is alive.
    pub fn name(&self) -> &str {
        self.shares.name()
    }

    /// What it looks after.
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Its jobs.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The routes of its HTTP interface and their description, to be served with or without another role's. `reads` are
    /// the bounds of all routes of the process that only read.
    pub fn api(&self, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
        api::routes(self.api_state(), tokens, reads)
    }

    /// The route that shows one message, for a listener without a producer's routes, which have it too.
    pub fn message_api(&self, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
        api::message_route(self.api_state(), tokens, reads)
    }

    fn api_state(&self) -> api::Api {
        api::Api {
            broker: self.broker.clone(),
            shares: self.shares.clone(),
            schedule: self.schedule.clone(),
            examining: self.examining.clone(),
            config: self.config.clone(),
            bodies: BodyLimits::new(self.config.http.body_timeout),
        }
    }

    /// Declares the topics of the configuration, whose settings win over those in Redis; keeps trying while Redis is
    /// away, until the shutdown. Warns of groups in Redis that the configuration does not name.
    ///
    /// # Errors
    /// A topic that cannot be as configured.
    pub async fn declare(&self) -> Result<(), BrokerError> {
        let topics = &self.config.topics;
        role::declare_topics(&self.broker, topics, Declare::Update, &self.shutdown).await?;
        for handle in topics.keys().filter_map(|topic| self.broker.known(topic)) {
            groups::tell_unconfigured(&self.broker, &handle).await;
        }
        Ok(())
    }

    /// Starts to move, to run the jobs and to send recurring messages, until the shutdown.
    pub fn start(&self, supervisor: &Supervisor) {
        let (shares, shutdown) = (self.shares.clone(), self.shutdown.clone());
        supervisor.spawn("share", Policy::restart(), move |beat| {
            let (shares, shutdown) = (shares.clone(), shutdown.clone());
            async move { shares.keep(beat, &shutdown).await }
        });
        let (movers, shutdown) = (self.movers.clone(), self.shutdown.clone());
        supervisor.spawn("movers", Policy::restart(), move |beat| {
            let (movers, shutdown) = (movers.clone(), shutdown.clone());
            async move { movers.keep(beat, &shutdown).await }
        });
        let (schedule, shutdown) = (self.schedule.clone(), self.shutdown.clone());
        supervisor.spawn("schedule", Policy::restart(), move |beat| {
            let (schedule, shutdown) = (schedule.clone(), shutdown.clone());
            async move { schedule.keep(beat, &shutdown).await }
        });
        for recurring in &self.recurring {
            let (recurring, shutdown) = (recurring.clone(), self.shutdown.clone());
            let name = format!("recurring:{}", recurring.topic());
            supervisor.spawn(name, Policy::restart(), move |beat| {
                let (recurring, shutdown) = (recurring.clone(), shutdown.clone());
                async move {
                    recurring.keep_alone(beat, &shutdown).await;
                    Ok::<(), Infallible>(())
                }
            });
        }
    }
}
