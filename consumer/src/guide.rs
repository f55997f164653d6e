//! Guides: pages of Lisa's book about consumers.
//!
//! The modules contain documentation only. Their links to other pages work in the repository, under `shared/docs`.

#[doc = include_str!("../../shared/docs/guides/groups.md")]
pub mod groups {}

#[doc = include_str!("../../shared/docs/guides/handlers.md")]
pub mod handlers {}
