//! `kept models inspect`: the contents of a GGUF file and the memory for a long document, on one screen.

use std::collections::BTreeMap;

use anyhow::Context;
use kept_engine::backend::Gpus;
use kept_engine::kernels::CacheType;
use kept_engine::models::{Config, LayerRotation, Model, RopeConfig, RopeScaling};
use kept_engine::{Engine, Fit, MethodSpec};
use kept_engine_cuda::CudaGpus;
use serde::Serialize;

use crate::arguments::InspectArguments;
use crate::fit;
use crate::model::model_path;
use crate::output::{self, bytes, count};

#[derive(Serialize)]
struct InspectJson {
    file: String,
    files: usize,
    file_bytes: u64,
    /// Of encoders of images or sound in the file.
    unused_bytes: u64,
    name: String,
    architecture: String,
    parameters: u64,
    layers: usize,
    full_layers: usize,
    sliding_layers: usize,
    recurrent_layers: usize,
    /// Layers that attend to the keys and values of an earlier one.
    sharing_layers: usize,
    /// Bytes of the recurrent layers' states.
    state_bytes: u64,
    experts: Option<Experts>,
    /// Layers for predicting several tokens at once, which are not used.
    prediction_layers: usize,
    window: Option<usize>,
    ignored_window: Option<usize>,
    unrotated_layers: usize,
    width: usize,
    ffn: usize,
    q_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    context: usize,
    rope: String,
    window_rope: Option<String>,
    attention_cap: Option<f32>,
    logit_cap: Option<f32>,
    tied_output: bool,
    tensors: BTreeMap<String, usize>,
    /// Share of the weights' bytes by type.
    quantisation: BTreeMap<String, f64>,
    bits_per_weight: f64,
    weights_bytes: u64,
    kv_bytes_per_token: u64,
    kv_bytes_context: u64,
    /// Type of the rows in these estimates.
    cache: &'static str,
    /// Bytes of the full cache at the context length, by type.
    kv_bytes_by_type: BTreeMap<&'static str, u64>,
    tokenizer: String,
    chat_template: bool,
    thinking: bool,
    /// The longest document for the free memory, if the system reports the free memory.
    fit: Option<Fit>,
    /// The same for the memory of the first GPU, if there is one.
    gpu: Option<GpuFit>,
}

#[derive(Serialize)]
struct Experts {
    all: usize,
    used: usize,
}

#[derive(Serialize)]
struct GpuFit {
    /// The GPU's name for `--device`.
    device: String,
    name: String,
    fit: Option<Fit>,
    /// Why the model cannot run on the GPU, regardless of its memory.
    error: Option<String>,
}

impl GpuFit {
    /// The estimate for the first GPU with `memory` bytes, by default its free memory.
    fn estimate(
        arguments: &InspectArguments,
        memory: Option<u64>,
        usual: &MethodSpec,
    ) -> anyhow::Result<Option<Self>> {
        let Some(gpu) = CudaGpus.list().into_iter().flatten().next() else {
            return Ok(None);
        };
        let path = model_path(&arguments.model)?;
        let engine = Engine::open_with(&path, &arguments.stretch.options())?;
        let placed = engine.as_if_on(gpu.device.parse()?, &CudaGpus);
        Ok(Some(Self {
            fit: (placed.as_ref().ok()).map(|placed| placed.fit(memory.unwrap_or(gpu.free), usual)),
            error: placed.err().map(|error| error.to_string()),
            device: gpu.device,
            name: gpu.name,
        }))
    }

    fn text(&self) -> String {
        match (&self.fit, &self.error) {
            (Some(fit), _) => fit::table(&self.device, fit),
            (None, error) => format!(
                "{:<11} {}\n",
                self.device,
                error.as_deref().unwrap_or_default()
            ),
        }
    }
}

pub fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let memory = arguments.memory()?;
    let path = model_path(&arguments.model)?;
    let engine = Engine::open_with(&path, &arguments.stretch.options())?;
    let mut report = report(&engine, path.display().to_string());
    let usual = MethodSpec::plain("snapkv");
    report.fit = memory.map(|bytes| engine.fit(bytes, &usual));
    report.gpu = GpuFit::estimate(arguments, arguments.named_memory()?, &usual)?;
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print_text(&screen(&report))?;
    }
    // The description is of use, but the model is not.
    let usable = engine.model().tokenizer().map(drop);
    usable.context("this model cannot answer questions")
}

fn report(engine: &Engine, file: String) -> InspectJson {
    let model = engine.model();
    let config = model.config();
    let files = model.gguf().files();
    let parameters = model.parameters();
    let (mut tensors, mut by_type) = (BTreeMap::new(), BTreeMap::new());
    for tensor in model.gguf().tensors() {
        *tensors.entry(tensor.kind.name()).or_insert(0) += 1;
        *by_type.entry(tensor.kind.name()).or_insert(0.0) += tensor.bytes as f64;
    }
    let all = model.weights_bytes();
    by_type.values_mut().for_each(|b| *b /= all.max(1) as f64);
    let template = model.gguf().text("tokenizer.chat_template").ok().flatten();
    let full_layers = config.full_layers().count();
    InspectJson {
        file,
        files: files.len(),
        file_bytes: files.iter().map(|file| file.len() as u64).sum(),
        unused_bytes: model.gguf().unused_bytes(),
        name: model.name().to_owned(),
        architecture: config.architecture().to_owned(),
        parameters,
        layers: config.layers,
        full_layers,
        sliding_layers: config.windows().count(),
        recurrent_layers: config.recurrent_layers(),
        sharing_layers: config.sharing_layers(),
        state_bytes: config.state_bytes(),
        experts: config.experts.map(|counts| Experts {
            all: counts.all,
            used: counts.used,
        }),
        prediction_layers: config.prediction_layers,
        window: config.windows().next(),
        ignored_window: config.ignored_window,
        unrotated_layers: unrotated(config),
        width: config.width,
        ffn: config.ffn,
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocabulary: config.vocab,
        context: config.context,
        rope: rope(&config.rope),
        window_rope: config.window_rope.as_ref().map(rope),
        attention_cap: config.attention_cap,
        logit_cap: config.logit_cap,
        tied_output: config.tied_output,
        tensors,
        quantisation: by_type,
        bits_per_weight: 8.0 * all as f64 / parameters.max(1) as f64,
        weights_bytes: all,
        kv_bytes_per_token: engine.bytes_per_row(),
        kv_bytes_context: engine.kv_bytes_full(config.context),
        cache: engine.cache_type().name(),
        kv_bytes_by_type: CacheType::ALL
            .map(|cache| {
                let stored = engine.clone().with_cache(cache);
                (cache.name(), stored.kv_bytes_full(config.context))
            })
            .into(),
        tokenizer: tokenizer(model),
        chat_template: template.is_some(),
        thinking: model.chat_template().is_ok_and(|t| t.can_think()),
        fit: None,
        gpu: None,
    }
}

fn unrotated(config: &Config) -> usize {
    let each = config.kinds.iter();
    each.filter(|kind| kind.rotation == LayerRotation::None)
        .count()
}

fn tokenizer(model: &Model) -> String {
    let text = |key: &str| -> String {
        let value = model.gguf().text(key).ok().flatten();
        value.unwrap_or("none").to_owned()
    };
    match model.tokenizer() {
        Ok(_) => format!(
            "{} with pre-tokenizer {}",
            text("tokenizer.ggml.model"),
            text("tokenizer.ggml.pre")
        ),
        Err(_) => "none that Kept can use".to_owned(),
    }
}

fn screen(report: &InspectJson) -> String {
    let lines = [
        ("file", files(report)),
        ("model", dimensions(report)),
        ("weights", weights(report)),
        ("layers", layers(report)),
        ("heads", heads(report)),
        ("context", format!("{} tokens", count(report.context))),
        ("rope", ropes(report)),
        (
            "tokenizer",
            format!("{} tokens, {}", count(report.vocabulary), report.tokenizer),
        ),
        ("template", template(report)),
        ("cache", cache(report)),
    ];
    let mut text = format!("{}\n", report.name);
    for (name, line) in lines {
        text += &format!("{name:<11} {line}\n");
    }
    let fit = report.fit.as_ref().map(|fit| fit::table("memory", fit));
    let gpu = report.gpu.as_ref().map(GpuFit::text);
    text + &fit.unwrap_or_default() + &gpu.unwrap_or_default()
}

fn dimensions(report: &InspectJson) -> String {
    format!(
        "{}, {} parameters, width {}, feed-forward {}{}",
        report.architecture,
        parameters(report.parameters),
        count(report.width),
        count(report.ffn),
        report.experts.as_ref().map_or_else(String::new, |experts| {
            format!(
                " in {} experts, of which a token uses {}",
                count(experts.all),
                experts.used
            )
        })
    )
}

fn weights(report: &InspectJson) -> String {
    let mut mix: Vec<_> = report.quantisation.iter().collect();
    mix.sort_by(|a, b| b.1.total_cmp(a.1));
    let mix: Vec<String> = mix
        .iter()
        .map(|(kind, share)| format!("{kind} {:.0} % ({})", *share * 100.0, report.tensors[*kind]))
        .collect();
    format!(
        "{}, {:.1} bits a weight; bytes by type (tensors): {}{}",
        bytes(report.weights_bytes),
        report.bits_per_weight,
        mix.join(", "),
        if report.tied_output {
            "; output tied to the embedding"
        } else {
            ""
        }
    )
}

fn heads(report: &InspectJson) -> String {
    format!(
        "{} query, {} key/value, {} wide{}",
        report.q_heads,
        report.kv_heads,
        report.head_dim,
        caps(report)
    )
}

fn template(report: &InspectJson) -> String {
    format!(
        "{}; thinking: {}",
        if report.chat_template { "yes" } else { "none" },
        if report.thinking {
            "can be turned on and off"
        } else {
            "none"
        }
    )
}

fn cache(report: &InspectJson) -> String {
    format!(
        "{} a token in {}{}, {} for the whole context ({})",
        bytes(report.kv_bytes_per_token),
        report.cache,
        match report.sliding_layers + report.recurrent_layers {
            0 => "",
            _ => " where layers attend to all",
        },
        bytes(report.kv_bytes_context),
        (CacheType::ALL.iter().map(|cache| cache.name()))
            .filter(|name| *name != report.cache)
            .map(|name| format!("{name} {}", bytes(report.kv_bytes_by_type[name])))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

fn files(report: &InspectJson) -> String {
    let parts = match report.files {
        1 => String::new(),
        parts => format!(" in {parts} files"),
    };
    let unused = match report.unused_bytes {
        0 => String::new(),
        unused => format!(
            "; {} of it, encoders of images or sound, are not used",
            bytes(unused)
        ),
    };
    format!(
        "{}, {}{parts}{unused}",
        report.file,
        bytes(report.file_bytes)
    )
}

/// `1.24 B`, `135 M`.
fn parameters(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.2} B", n as f64 / 1e9),
        1_000_000.. => format!("{:.0} M", n as f64 / 1e6),
        _ => count(n as usize),
    }
}

fn layers(report: &InspectJson) -> String {
    let mut text = match report.window {
        None if report.recurrent_layers > 0 => format!(
            "{}: {} attend to every token and are compressed, {} have a state of constant size ({}) and are not",
            report.layers,
            report.full_layers,
            report.recurrent_layers,
            bytes(report.state_bytes)
        ),
        None => format!("{}, all attend to every token", report.layers),
        Some(window) => format!(
            "{}: {} attend to every token and are compressed, {} to the last {} and are not",
            report.layers,
            report.full_layers,
            report.sliding_layers,
            count(window)
        ),
    };
    if report.sharing_layers > 0 {
        let sharing = report.sharing_layers;
        text += &format!("; {sharing} attend to the keys of an earlier layer and keep none");
    }
    if let Some(window) = report.ignored_window {
        let window = count(window);
        text += &format!("; a window of {window} in the file is not applied, as in llama.cpp");
    }
    if report.prediction_layers > 0 {
        let more = report.prediction_layers;
        text += &format!("; {more} more for predicting several tokens at once are not used");
    }
    text
}

fn caps(report: &InspectJson) -> String {
    let cap = |cap: Option<f32>, what: &str| match cap {
        Some(cap) => format!(", {what} capped at {cap}"),
        None => String::new(),
    };
    cap(report.attention_cap, "scores") + &cap(report.logit_cap, "logits")
}

fn ropes(report: &InspectJson) -> String {
    let mut text = report.rope.clone();
    if let Some(rope) = &report.window_rope {
        text += &format!("; sliding layers: {rope}");
    }
    if report.unrotated_layers > 0 {
        text += &format!("; {} layers are not rotated", report.unrotated_layers);
    }
    text
}

/// `base 500000, 64 numbers of a head rotated, stretched linearly by 4`.
fn rope(rope: &RopeConfig) -> String {
    let scaling = match &rope.scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(", stretched linearly by {factor}"),
        RopeScaling::Factors(_) => ", stretched by the file's factors".to_owned(),
        RopeScaling::Yarn(yarn) => format!(
            ", stretched from {} tokens by yarn, {}",
            count(yarn.original),
            yarn.factor
        ),
        RopeScaling::Long(long) => format!(
            ", stretched from {} tokens by longrope",
            count(long.original)
        ),
    };
    format!(
        "base {}, {} numbers of a head rotated{scaling}",
        rope.base, rope.dims
    )
}
