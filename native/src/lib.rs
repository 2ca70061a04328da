//! Optional compiled accelerator of evenq's broker: byte work, and no policy.
//!
//! It reads no settings, has no clock and takes no locks. Limits come in as arguments, and what it does not take goes
//! back to Python, which alone decides what is refused. `docs/internals/native.md` describes how it is tested.
#![forbid(unsafe_code)]

pub mod digest;
#[cfg(feature = "python")]
mod packing;
pub mod plain;
#[cfg(feature = "python")]
mod python;
pub mod record;
