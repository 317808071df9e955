//! What `kept-worker` and the window say to each other: frames ([`Frame`]) that hold messages ([`Request`], [`Reply`]) or bytes.
//!
//! Not here: who answers. The worker is `bin/kept-worker.rs`; the window has a reader of its own on the same header
//! functions, since it reads without blocking.

mod facts;
mod frame;
mod message;
mod path;

pub use facts::{
    AnswerFacts, DocumentInfo, Gpus, Inspection, MethodFacts, ModelFacts, PageInfo, ParameterFacts,
    PartInfo, SourceInfo,
};
pub use frame::{
    Frame, HEADER_BYTES, Kind, MAX_PAYLOAD_BYTES, ProtocolError, header, parse_header, read_frame,
    write_frame,
};
pub use message::{CompareRun, Failure, MethodChoice, Reply, Request};

pub use crate::{Estimate, Finish, Fit, FitLine, MemoryNow, Phase, Progress};
