//! A value of each shape: only their fields matter.

use kept_app::contract::*;
use kept_engine::fidelity::{Fidelity, IndexFigures, MethodRun, ReferenceReport, RunReport};
use kept_engine::{Finish, Method, RetentionMap};

pub fn reference_report() -> ReferenceReport {
    ReferenceReport {
        run: String::new(),
        method: String::new(),
        model: String::new(),
        prompt_tokens: 0,
        answer: String::new(),
        answer_tokens: 0,
        finish: Finish::End,
        kv_bytes: 0,
        first_token_seconds: 0.0,
        decode_tokens_per_second: 0.0,
        heads: Vec::new(),
        wavelet: None,
    }
}

pub fn index_figures() -> IndexFigures {
    IndexFigures {
        jaccard: None,
        jaccard_first_head: None,
        layer_similarity: Vec::new(),
        position_histogram: Vec::new(),
        position_entropy: 0.0,
        position_entropy_most: 0.0,
    }
}

pub fn fidelity() -> Fidelity {
    Fidelity {
        kl: None,
        top1: None,
        attention_recall: None,
        attention_recall_per_layer: Vec::new(),
        kl_per_token: Vec::new(),
        first_kl: 0.0,
    }
}

pub fn method_run() -> MethodRun {
    MethodRun {
        budget_rows: 0,
        rows_per_layer: Vec::new(),
        kv_bytes: 0,
        cache: String::new(),
        kv_bytes_full: 0,
        prefill_seconds: 0.0,
        select_seconds: 0.0,
        first_token_seconds: 0.0,
        decode_tokens_per_second: 0.0,
        answer: String::new(),
        same_answer: true,
        fidelity: fidelity(),
        indices: index_figures(),
        map: RetentionMap::default(),
    }
}

/// A run with no result: the fields that every run has.
pub fn refused_run() -> RunReport {
    let method = Method {
        name: String::new(),
        parameters: Vec::new(),
    };
    RunReport::new(&method, "", 0, Err(String::new()))
}

pub fn run_result() -> RunResult {
    RunResult {
        seconds: 0.0,
        report: refused_run(),
    }
}

pub fn reference_result() -> ReferenceResult {
    ReferenceResult {
        seconds: 0.0,
        report: reference_report(),
    }
}

pub fn comparison() -> Comparison {
    Comparison {
        id: 1,
        question: String::new(),
        document: String::new(),
        model: String::new(),
        max_tokens: 64,
        state: ComparisonState::Running,
        error: None,
        reference: None,
        runs: Vec::new(),
        current: None,
        sharing: 1,
        progress: None,
    }
}

pub fn settings() -> Settings {
    kept_app::state::default_settings()
}

pub fn memory() -> Memory {
    Memory {
        weights: 0,
        kept: 0,
        kept_full: 0,
        tables: 0,
        scratch: 0,
        available: None,
        total: None,
    }
}

pub fn vault() -> Vault {
    Vault {
        folder: String::new(),
        documents: 0,
        bytes: 0,
        budget: 0,
    }
}

pub fn gpu() -> Gpu {
    Gpu {
        device: String::new(),
        name: String::new(),
        memory: 0,
        free: 0,
    }
}

pub fn progress() -> Progress {
    Progress {
        phase: Phase::Reading,
        tokens_done: 0,
        tokens_total: 0,
        tokens_per_second: 0.0,
        seconds_left: 0.0,
        tokens_from_vault: 0,
    }
}

pub fn worker() -> WorkerState {
    WorkerState {
        state: WorkerStatus::Starting,
        message: None,
    }
}

pub fn turn() -> Turn {
    Turn {
        id: 1,
        question: String::new(),
        answer: String::new(),
        state: TurnState::Asked,
        error: None,
        method: String::new(),
        parameters: Parameters::new(),
        budget: None,
        cache: None,
        memory: None,
        model: String::new(),
        sources: Vec::new(),
        facts: None,
        has_map: false,
        thinking: false,
        windows: Vec::new(),
    }
}

pub fn library() -> Library {
    Library {
        found: Vec::new(),
        unfinished: Vec::new(),
        troubles: Vec::new(),
        folders: Vec::new(),
        catalogue: Vec::new(),
        free_memory: None,
        offline: false,
    }
}

pub fn found_model() -> FoundModel {
    FoundModel {
        id: String::new(),
        name: String::new(),
        title: None,
        architecture: None,
        quantisation: None,
        bytes: 0,
        parts: 1,
        parameters: None,
        context: None,
        place: String::new(),
        lies: String::new(),
        reason: None,
        choice: None,
        in_box: false,
        removable: false,
    }
}

pub fn catalogue_model() -> CatalogueModel {
    CatalogueModel {
        name: String::new(),
        reference: String::new(),
        about_bytes: 0,
        needs_bytes: 0,
        parameters: 0,
        context: 0,
        licence: String::new(),
        good_for: String::new(),
        suits: Suits::Unknown,
        here: None,
    }
}

pub fn download() -> Download {
    Download {
        id: 1,
        reference: String::new(),
        state: DownloadState::Queued,
        bytes_done: 0,
        bytes_total: 0,
        bytes_per_second: None,
        seconds_left: None,
        part: 0,
        parts: 0,
        message: None,
        model: None,
    }
}

pub fn hub_offer() -> HubOffer {
    HubOffer {
        reference: String::new(),
        file: String::new(),
        bytes: 0,
        parts: 1,
        quantisation: None,
        suits: Suits::Unknown,
        meant: false,
        here: None,
    }
}

pub fn fit_line() -> FitLine {
    FitLine {
        rows: None,
        tokens: 0,
        pages: 0,
        peak_bytes: 0,
        whole_context: false,
    }
}

pub fn inspection() -> Inspection {
    Inspection {
        layers: 0,
        sliding_layers: 0,
        window: None,
        context: 0,
        weights_bytes: 0,
        kv_bytes_per_thousand: 0,
        window_bytes: 0,
        can_think: false,
        free_bytes: None,
        missing_bytes: 0,
        lines: Vec::new(),
    }
}
