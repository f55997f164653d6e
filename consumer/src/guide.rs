//! Guides: pages of Lisa's book about consumers.
//!
//! The modules contain documentation only. Their links to other pages work in the repository, under `shared/docs`.

#[doc = include_str!("guide/groups.md")]
pub mod groups {}

#[doc = include_str!("guide/handlers.md")]
pub mod handlers {}
