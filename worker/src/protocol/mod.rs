//! The protocol between `kept-worker` and the app: frames (`frame.rs`) with a message ([`Request`], [`Reply`]) and bytes.
//!
//! The app reads frames without blocking, with its own reader on the same header
//! functions.

mod facts;
mod fault;
mod frame;
mod reply;
mod request;

pub use facts::{
    AnswerFacts, AttendedFacts, Gpus, Inspection, ModelFacts, SourceInfo, Speed, StoredDocument,
    Vault,
};
pub use fault::{Fault, FaultCode};
pub use frame::{
    HEADER_BYTES, MAX_PAYLOAD_BYTES, ProtocolError, header, parse_header, read_message,
    write_message,
};
pub use reply::{Failure, Reply};
pub use request::{Access, AskRequest, CompareRequest, CompareRun, EstimateRequest, Request};

pub use kept_engine::{Estimate, Finish, FitLine, MemoryNow, Phase, Progress};
