//! Guides: pages of Lisa's book about sending messages and the settings of topics.
//!
//! The modules contain documentation only. Their links to other pages work in the repository, under `shared/docs`.

#[doc = include_str!("guide/changing.md")]
pub mod changing {}

#[doc = include_str!("guide/expiry.md")]
pub mod expiry {}

#[doc = include_str!("guide/limits.md")]
pub mod limits {}

#[doc = include_str!("guide/merging.md")]
pub mod merging {}

#[doc = include_str!("guide/ordering.md")]
pub mod ordering {}

#[doc = include_str!("guide/priority.md")]
pub mod priority {}

#[doc = include_str!("guide/shards.md")]
pub mod shards {}
