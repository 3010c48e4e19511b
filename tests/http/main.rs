//! The boundary: what an HTTP client sees, the client half, and the flagship example over real sockets.

#[path = "../support/mod.rs"]
mod support;
mod wire;

mod charge_client;
mod client;
mod client_properties;
mod client_sends;
mod flagship;
mod health;
mod key;
mod layers;
mod ride;
mod sdks;
mod stripe;
mod wire_ietf;
mod wire_stripe;
