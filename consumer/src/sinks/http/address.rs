//! Which addresses a webhook may be sent to, and the resolver that connections are made by.
//!
//! A name is resolved here, all its addresses are checked, and the connection goes to exactly these: a name that
//! changes between check and use gains nothing. Without this guard a URL in a configuration, or whoever controls its
//! DNS, could reach what only this machine can reach.

use std::io;
use std::net::{IpAddr, SocketAddr};

use futures_util::future::BoxFuture;
use lisa_shared::config::special_address;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Why no connection is tried.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("{address} is {kind}: refused, as allow_private is not set")]
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

/// Asks for the addresses of a name.
pub(super) type Lookup = fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

/// Asks the system.
pub(super) fn system(name: String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
    Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
}

/// Resolves names for the HTTP client, which does not ask it about hosts that are addresses already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolver {
    pub(super) allow_private: bool,
    pub(super) lookup: Lookup,
}

impl Resolver {
    /// Fails closed: one address that is refused refuses the name.
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

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = *self;
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
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
