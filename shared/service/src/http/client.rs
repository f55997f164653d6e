//! The client of the request that is being answered: by the topics of its token, by its token, or by its address.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request};
use lisa_core::topic::{ScheduleQuota, Topic, TopicQuota};
use tokio::task::futures::TaskLocalFuture;

use super::auth::{Reach, SendQuota};

/// The network bits of an IPv6 address: a /64 counts as one client.
const NETWORK: u128 = !(u64::MAX as u128);

tokio::task_local! {
    /// The address of the client whose request is being answered.
    static ADDRESS: Client;
}

/// The client to which the use of a resource is attributed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// All tokens that are limited to the same topics.
    Team(Team),
    /// The name of an accepted token.
    Token(Arc<str>),
    /// The address of a client without a token, or its /64 network.
    Address(IpAddr),
    /// A client without a known address.
    Unknown,
}

impl Client {
    /// Returns the client of the request being answered: by its token, or else by its address.
    #[must_use]
    pub fn current() -> Self {
        let address = || ADDRESS.try_with(Self::clone).unwrap_or(Self::Unknown);
        Self::admitted().unwrap_or_else(address)
    }

    /// Returns the client of a request: by the token that was accepted for it, or else by its address.
    pub(super) fn of(request: &Request) -> Self {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        match (Self::admitted(), peer) {
            (Some(client), _) => client,
            (None, Some(ConnectInfo(peer))) => Self::Address(network(peer.ip())),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns the client of the request being answered as it was admitted.
    fn admitted() -> Option<Self> {
        ADMITTED.try_with(Admitted::known).ok().flatten()
    }

    /// Runs the answer to a request from this address.
    pub(super) fn scope<F: Future>(self, answer: F) -> impl Future<Output = F::Output> {
        ADDRESS.scope(self, answer)
    }
}

/// The tokens that are limited to the same topics. They are one client, so a team that gets more tokens gets no larger share.
#[derive(Clone, Debug)]
pub struct Team(Arc<Reach>);

impl PartialEq for Team {
    fn eq(&self, other: &Self) -> bool {
        self.0.topics == other.0.topics
    }
}

impl Eq for Team {}

impl Hash for Team {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.topics.hash(state);
    }
}

/// Returns the address that identifies a client. For IPv6 it is the network, because one client may have all its addresses.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => IpAddr::V6((peer.to_bits() & NETWORK).into()),
        peer @ IpAddr::V4(_) => peer,
    }
}

tokio::task_local! {
    /// The client of the request being answered, if it was admitted.
    static ADMITTED: Admitted;
}

/// An admitted client, as the future that answers its request holds it.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// True if it may read.
    may_read: bool,
    /// The name of its token, if tokens are configured.
    token: Option<Arc<str>>,
    /// The address of a client without a token, for work that goes on after the handler has returned.
    address: Option<Client>,
    reach: Arc<Reach>,
    quota: Option<Arc<SendQuota>>,
    topic_quota: Option<Arc<TopicQuota>>,
    schedule_quota: Option<Arc<ScheduleQuota>>,
}

impl Admitted {
    /// Creates a client with the name of its token. It has none if no tokens are configured, or only that of a delivery.
    #[must_use]
    pub fn new(may_read: bool, token: Option<Arc<str>>) -> Self {
        Self {
            may_read,
            token,
            address: None,
            reach: Arc::default(),
            quota: None,
            topic_quota: None,
            schedule_quota: None,
        }
    }

    /// Limits the client to some topics and groups.
    #[must_use]
    pub fn within(self, reach: &Arc<Reach>) -> Self {
        Self {
            reach: reach.clone(),
            ..self
        }
    }

    /// Limits the messages that the client may send.
    #[must_use]
    pub fn with_quota(self, quota: Option<&Arc<SendQuota>>) -> Self {
        Self {
            quota: quota.cloned(),
            ..self
        }
    }

    /// Limits the topics that the client may declare.
    #[must_use]
    pub fn with_topic_quota(self, quota: Option<&Arc<TopicQuota>>) -> Self {
        Self {
            topic_quota: quota.cloned(),
            ..self
        }
    }

    /// Limits the schedules that the client may create.
    #[must_use]
    pub fn with_schedule_quota(self, quota: Option<&Arc<ScheduleQuota>>) -> Self {
        Self {
            schedule_quota: quota.cloned(),
            ..self
        }
    }

    /// Returns the client whose request is being answered, if it was admitted: for work that goes on after the handler has returned.
    #[must_use]
    pub fn current() -> Option<Self> {
        let address = || ADDRESS.try_with(Client::clone).ok();
        ADMITTED.try_with(Self::clone).ok().map(|client| Self {
            address: client.address.clone().or_else(address),
            ..client
        })
    }

    /// Returns the client: by its token, or else by the address of the request being answered.
    #[must_use]
    pub fn client(&self) -> Client {
        self.known().unwrap_or_else(Client::current)
    }

    fn known(&self) -> Option<Client> {
        match (&self.token, &self.reach.topics) {
            (Some(_), Some(_)) => Some(Client::Team(Team(self.reach.clone()))),
            (Some(name), None) => Some(Client::Token(name.clone())),
            (None, _) => self.address.clone(),
        }
    }

    /// Runs the answer to a request of this client.
    pub fn scope<F: Future>(self, answer: F) -> TaskLocalFuture<Self, F> {
        ADMITTED.scope(self, answer)
    }
}

/// Returns true while a request is answered whose client was admitted: with a token, or because no tokens are configured.
/// Others are strangers.
#[must_use]
pub fn is_admitted() -> bool {
    ADMITTED.try_with(|_| ()).is_ok()
}

/// Returns true while a request is answered whose token has the scope `read`, or if no tokens are configured.
#[must_use]
pub fn may_read() -> bool {
    ADMITTED.try_with(|client| client.may_read).unwrap_or(false)
}

/// Returns true if an error may name topics, groups or messages that the request did not name: the client may read, and reaches
/// everything.
#[must_use]
pub fn may_learn_names() -> bool {
    may_read() && !reach().is_limited()
}

/// Returns what the client whose request is being answered reaches. Outside a request, that is everything.
#[must_use]
pub fn reach() -> Arc<Reach> {
    let reach = ADMITTED.try_with(|client| client.reach.clone());
    reach.unwrap_or_default()
}

/// Counts a message of that client against its quota.
///
/// # Errors
/// The quota, in messages a second, is used up: the message must not be sent.
pub fn admit_send() -> Result<(), u32> {
    let quota = ADMITTED.try_with(|client| client.quota.clone());
    match quota.ok().flatten() {
        Some(quota) if !quota.admit() => Err(quota.per_second()),
        _ => Ok(()),
    }
}

/// Returns the limits of the topics that the client of the request being answered may declare, if there are any.
#[must_use]
pub fn topic_quota() -> Option<Arc<TopicQuota>> {
    ADMITTED
        .try_with(|client| client.topic_quota.clone())
        .unwrap_or_default()
}

/// Returns the quota of schedules of that client, if there is one.
#[must_use]
pub fn schedule_quota() -> Option<Arc<ScheduleQuota>> {
    ADMITTED
        .try_with(|client| client.schedule_quota.clone())
        .unwrap_or_default()
}

/// Returns true if that client reaches the topic.
#[must_use]
pub fn reaches(topic: &Topic) -> bool {
    reach().has_topic(topic)
}

/// Returns true if that client reaches the topic with this name, which need not be valid. Without a name, it must reach all topics.
#[must_use]
pub fn reaches_named(topic: Option<&str>) -> bool {
    let reach = reach();
    let topic = || topic?.parse().ok();
    reach.topics.is_none() || topic().is_some_and(|topic| reach.has_topic(&topic))
}

/// Returns the name of the token of the request being answered; `None` if no tokens are configured.
#[must_use]
pub fn token_name() -> Option<Arc<str>> {
    ADMITTED
        .try_with(|client| client.token.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tokens_of_a_team_are_one_client() {
        let client = async |name: &str, topics: &[&str]| {
            let patterns = topics.iter().map(|topic| topic.parse().unwrap());
            let reach = Reach {
                topics: (!topics.is_empty()).then(|| patterns.collect()),
                ..Reach::default()
            };
            let admitted = Admitted::new(true, Some(name.into())).within(&Arc::new(reach));
            let same = admitted.client();
            let current = admitted.scope(async { Client::current() }).await;
            assert_eq!(current, same);
            current
        };
        let shop = client("shop-1", &["shop-*", "orders"]).await;
        assert_eq!(shop, client("shop-2", &["shop-*", "orders"]).await);
        assert_ne!(shop, client("shop-1", &["shop-*"]).await);
        assert_ne!(client("a", &[]).await, client("b", &[]).await);
    }

    #[test]
    fn an_address_of_ipv6_counts_as_its_network() {
        let network = |peer: &str| network(peer.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:0:1:ffff::7"), "2001:db8:0:1::");
        assert_eq!(network("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
