//! The server that a peer keeps its messages in: fresh and private.

mod cpu;
pub(crate) mod owned;

use std::cell::RefCell;
use std::path::Path;

use lisa_tests::{Nats, RabbitMq, Server};

pub(crate) use self::cpu::Cpu;
use self::owned::Owned;

/// A private running server, empty at start, stopped when dropped.
pub(crate) enum Store {
    /// A Redis with the settings of Lisa's own tests, and a connection to query it.
    Redis(Box<Server>, RefCell<redis::Connection>),
    /// A beanstalkd with its defaults, nothing on disk, or a PostgreSQL that waits for no disk.
    Owned(Owned),
    /// A RabbitMQ with its defaults.
    RabbitMq(Box<RabbitMq>, Cpu),
    /// A NATS with JetStream.
    Nats(Box<Nats>, Cpu),
    /// Lisa for clients of HTTP: a Redis, a manager that is also a producer, and a gateway, each a process.
    Lisa {
        redis: Box<Self>,
        manager: Owned,
        gateway: Owned,
    },
}

impl Store {
    /// Starts a Redis.
    pub(crate) fn redis() -> Result<Self, String> {
        let server = Server::builder().cluster(false).start();
        let connection =
            redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let connection = connection.map_err(|error| error.to_string())?;
        Ok(Self::Redis(Box::new(server), RefCell::new(connection)))
    }

    /// Starts a Redis and the programs of Lisa.
    pub(crate) fn lisa() -> Result<Self, String> {
        let redis = Box::new(Self::redis()?);
        let (manager, gateway) = Owned::lisa(&redis.address())?;
        Ok(Self::Lisa {
            redis,
            manager,
            gateway,
        })
    }

    /// Starts a beanstalkd.
    pub(crate) fn beanstalkd() -> Result<Self, String> {
        Owned::beanstalkd().map(Self::Owned)
    }

    /// Starts a PostgreSQL.
    pub(crate) fn postgres() -> Result<Self, String> {
        Owned::postgres().map(Self::Owned)
    }

    /// Starts a RabbitMQ.
    pub(crate) fn rabbitmq() -> Result<Self, String> {
        let server = wait_for(RabbitMq::start())?.ok_or("RabbitMQ cannot be fetched")?;
        let cpu = cpu(&server.dir().join("pid"))?;
        Ok(Self::RabbitMq(Box::new(server), cpu))
    }

    /// Starts a NATS.
    pub(crate) fn nats() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let pid = dir.path().join("pid");
        let builder = Nats::builder().config(&format!("pid_file: {:?}", pid.display().to_string()));
        let server = wait_for(builder.start())?.ok_or("NATS cannot be fetched")?;
        Ok(Self::Nats(Box::new(server), cpu(&pid)?))
    }

    /// Host and port; of Lisa the URLs of the producer and of the gateway, with a comma between them.
    pub(crate) fn address(&self) -> String {
        let port = match self {
            Self::Lisa {
                manager, gateway, ..
            } => {
                let url = |server: &Owned| format!("http://127.0.0.1:{}", server.port);
                return format!("{},{}", url(manager), url(gateway));
            }
            Self::Redis(server, _) => server.port(),
            Self::Owned(server) => server.port,
            Self::RabbitMq(server, _) => server.port(),
            Self::Nats(server, _) => server.port(),
        };
        format!("127.0.0.1:{port}")
    }

    /// The ports of Lisa's producer and gateway; `None` for other servers.
    pub(crate) fn ports(&self) -> Option<[u16; 2]> {
        match self {
            Self::Lisa {
                manager, gateway, ..
            } => Some([manager.port, gateway.port]),
            _ => None,
        }
    }

    /// CPU seconds: of the thread of Redis that serves, or of all processes of another server.
    pub(crate) fn cpu(&self) -> Result<f64, String> {
        match self {
            Self::Redis(_, connection) => {
                let info = info(connection, "cpu")?;
                Ok(field(&info, "used_cpu_sys_main_thread")?
                    + field(&info, "used_cpu_user_main_thread")?)
            }
            Self::Owned(Owned { cpu, .. }) | Self::RabbitMq(_, cpu) | Self::Nats(_, cpu) => {
                cpu.seconds()
            }
            Self::Lisa { redis, .. } => redis.cpu(),
        }
    }

    /// CPU seconds of the programs between clients and server: the manager with its producer, and the gateway.
    pub(crate) fn programs_cpu(&self) -> Result<[f64; 2], String> {
        match self {
            Self::Lisa {
                manager, gateway, ..
            } => Ok([manager.cpu.seconds()?, gateway.cpu.seconds()?]),
            _ => Ok([0.0; 2]),
        }
    }

    /// Returns the number of commands served, including those that scripts call; `None` for a server other than Redis.
    pub(crate) fn commands(&self) -> Result<Option<f64>, String> {
        match self {
            Self::Redis(_, connection) => {
                field(&info(connection, "stats")?, "total_commands_processed").map(Some)
            }
            Self::Lisa { redis, .. } => redis.commands(),
            Self::Owned(_) | Self::RabbitMq(..) | Self::Nats(..) => Ok(None),
        }
    }
}

fn wait_for<T>(start: impl Future<Output = T>) -> Result<T, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map(|runtime| runtime.block_on(start))
        .map_err(|error| error.to_string())
}

/// Watches the process of a pid file.
fn cpu(file: &Path) -> Result<Cpu, String> {
    let pid = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let pid = pid.trim().parse();
    pid.map(Cpu::of)
        .map_err(|_| format!("no pid in {}", file.display()))
}

fn info(connection: &RefCell<redis::Connection>, section: &str) -> Result<String, String> {
    let mut info = redis::cmd("INFO");
    info.arg(section)
        .query(&mut *connection.borrow_mut())
        .map_err(|error| error.to_string())
}

fn field(info: &str, name: &str) -> Result<f64, String> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| format!("INFO has no {name}"))
}
