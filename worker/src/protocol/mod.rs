//! The protocol between `kept-worker` and the app: frames ([`Frame`]) that hold messages ([`Request`], [`Reply`]) or
//! bytes.
//!
//! The app reads frames without blocking, with its own reader on the same header
//! functions.

mod facts;
mod fault;
mod frame;
mod message;
mod path;

pub use facts::{
    AnswerFacts, AttendedFacts, DocumentInfo, Gpus, Inspection, MethodFacts, ModelFacts, PageInfo,
    ParameterFacts, PartInfo, SourceInfo, StoredDocument,
};
pub use fault::{Fault, FaultCode};
pub use frame::{
    Frame, HEADER_BYTES, Kind, MAX_PAYLOAD_BYTES, ProtocolError, header, parse_header, read_frame,
    write_frame,
};
pub use message::{
    AskRequest, CompareRequest, CompareRun, EstimateRequest, Failure, Reply, Request,
};

pub use kept_engine::{Estimate, Finish, Fit, FitLine, MemoryNow, Phase, Progress};
