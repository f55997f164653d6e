//! The addresses to which webhooks may be sent, and the DNS resolver of the HTTP client.
//!
//! The resolver checks all addresses of a name, and the client connects to exactly these. So a name that changes between
//! check and use (DNS rebinding) does not bypass the check. Without this guard, a configured URL, or an attacker who
//! controls its DNS, could reach services that only this machine can reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;
use lisa_service::targets::special_address;
use tower::Service;

/// The reason why no connection is made.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("{address} is {kind}: refused unless allow_private = true")]
    Refused { address: IpAddr, kind: &'static str },
    #[error("cannot resolve {name:?}: {source}")]
    Unresolved { name: String, source: io::Error },
    #[error("{name:?} has no address")]
    NoAddress { name: String },
}

/// Refuses an address outside the public internet.
pub(super) fn check(address: IpAddr) -> Result<(), AddressError> {
    match special_address(address) {
        Some(kind) => Err(AddressError::Refused { address, kind }),
        None => Ok(()),
    }
}

/// A function that looks up the addresses of a name.
pub(super) type Lookup = fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

/// Looks up a name with the system's resolver.
pub(super) fn system(name: String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
}

/// The resolver of the HTTP client. The client does not call it for hosts that are addresses already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolver {
    pub(super) allow_private: bool,
    pub(super) lookup: Lookup,
}

impl Resolver {
    /// Resolves a name. Fails closed: if one of its addresses is refused, so is the name.
    async fn addresses(self, name: &str) -> Result<Vec<SocketAddr>, AddressError> {
        let found = (self.lookup)(name.to_owned()).await;
        let found = found.map_err(|source| AddressError::Unresolved {
            name: name.to_owned(),
            source,
        })?;
        if found.is_empty() {
            let name = name.to_owned();
            return Err(AddressError::NoAddress { name });
        }
        if !self.allow_private {
            for address in &found {
                check(address.ip())?;
            }
        }
        Ok(found)
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = AddressError;
    type Future = BoxFuture<'static, Result<Self::Response, AddressError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AddressError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = *self;
        Box::pin(async move { Ok(resolver.addresses(name.as_str()).await?.into_iter()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_of_this_machine_is_refused_and_an_unknown_one_fails() {
        let guard = Resolver {
            allow_private: false,
            lookup: system,
        };
        let refused = guard.addresses("localhost").await;
        assert!(
            matches!(refused, Err(AddressError::Refused { .. })),
            "{refused:?}"
        );
        let open = Resolver {
            allow_private: true,
            lookup: system,
        };
        assert!(!open.addresses("localhost").await.unwrap().is_empty());
        let unknown = open.addresses("no such name").await;
        assert!(
            matches!(unknown, Err(AddressError::Unresolved { .. })),
            "{unknown:?}"
        );
    }
}
