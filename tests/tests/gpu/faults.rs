//! A question on a GPU that runs out of memory, is stopped, or fails: one error message, and the next question is
//! answered as usual. On this computer's GPU in a `cuda` build, else on the emulator; only a separate process may lose
//! a real GPU, and only where one exists.

use std::net::TcpListener;
use std::thread;

use crate::gpus::*;
use kept_cuda::{Buffer, Device, DeviceError, emulated};
use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::Budget;
use kept_engine::{Answer, Ask, Engine, EngineError, Event, Finish, Limits, MethodSpec, Streaming};
use kept_engine_cuda::OnGpu;
use kept_models::testing::TinyLlama;
use kept_tests::worker::{Worker, ask, endless, is_end, open_document, open_model};
use kept_worker::protocol::{Failure, Reply, Request};
use serde_json::{Value, json};

/// Memory of the emulated GPU, which a test fills.
const LITTLE: u64 = 32 << 20;

fn model() -> Tiny {
    tiny(&TinyLlama {
        context: 1 << 16,
        ..quick("llama", 2)
    })
}

fn on(file: &Tiny, gpu: &Device) -> Engine {
    let engine = Engine::open(&file.path).expect("a model");
    engine.on_gpu(gpu.clone()).expect("memory")
}

/// Asks about `words` words of text, with a watcher.
fn asked(
    engine: &Engine,
    method: &str,
    times: usize,
    watch: &mut dyn FnMut(Event<'_>),
    stop: &Stop,
) -> Result<Answer, EngineError> {
    let text = "the word and ".repeat(times).into_bytes();
    let document = Document::from_bytes("note.txt", text).expect("a text");
    let method = MethodSpec::plain(method);
    let ask = Ask {
        budget: Some(Budget::Rows(40)),
        max_tokens: 5,
        limits: Limits::from(Streaming::Off),
        ..Ask::new(&document, "Who?", &method)
    };
    engine.ask(&ask, watch, stop)
}

/// Words and rows of an answer: they must not depend on earlier questions.
fn answered(engine: &Engine, method: &str) -> (String, Vec<usize>) {
    let answer = asked(engine, method, 12, &mut |_| (), &Stop::new()).expect("an answer");
    (answer.text, answer.rows_per_layer)
}

/// Asserts a one-sentence error that names the remedy.
#[track_caller]
fn is_one_sentence(error: &EngineError, way_out: &str) {
    let said = error.to_string();
    assert!(said.contains(way_out) && !said.contains('\n'), "{said}");
}

/// Allocates the free memory of a GPU to the last kilobyte; no GPU gives all of it in one buffer.
fn ballast(gpu: &Device) -> Vec<Buffer<u8>> {
    let mut held = Vec::new();
    let mut piece = gpu.free_memory().expect("it answers").max(1 << 20);
    while piece >= 1 << 10 {
        match gpu.alloc_uninit::<u8>(piece as usize) {
            Ok(taken) => held.push(taken),
            Err(DeviceError::OutOfMemory { .. }) => piece /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    held
}

#[test]
fn a_full_gpu_refuses_with_the_missing_bytes() {
    let (file, gpu) = (model(), gpu_of(LITTLE));
    let engine = on(&file, &gpu);
    let expected = answered(&engine, "snapkv");
    let held = ballast(&gpu);
    // About 18,000 tokens: their measurements need megabytes.
    let refusal = asked(&engine, "snapkv", 6000, &mut |_| (), &Stop::new());
    let refusal = refusal.err().expect("refused");
    is_one_sentence(&refusal, "are missing");
    assert!(
        matches!(&refusal, EngineError::GpuMemory { needed, free, .. } if needed > free),
        "{refusal}"
    );
    assert!(!refusal.loses_gpu(), "nothing was asked of the GPU");
    drop(held);
    assert_eq!(answered(&engine, "snapkv"), expected);
    // This would take minutes on the emulator.
    if !is_emulated(&gpu) {
        let found = asked(&engine, "snapkv", 6000, &mut |_| (), &Stop::new());
        assert!(found.expect("there is room").prompt.len() > 18_000);
    }
}

/// Time at which another program takes the GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    /// After the prompt is built.
    Made,
    /// After eviction in the prompt's first layer.
    Cut,
    /// After prefill.
    Read,
}

/// Takes the free memory of a GPU at that time.
struct Greedy<'a> {
    gpu: &'a Device,
    when: When,
    held: Vec<Buffer<u8>>,
}

impl Greedy<'_> {
    fn receive(&mut self, event: Event<'_>) {
        let when = match event {
            Event::Prompt(_) => When::Made,
            Event::Layer { .. } => When::Cut,
            Event::Read { .. } => When::Read,
            _ => return,
        };
        if when == self.when && self.held.is_empty() {
            self.held = ballast(self.gpu);
        }
    }
}

/// Another program takes the memory between the estimate and the prefill.
#[test]
fn the_engine_answers_again_after_running_out_of_memory() {
    let (file, gpu) = (model(), gpu_of(LITTLE));
    let engine = on(&file, &gpu);
    for (method, when) in [
        ("snapkv", When::Made),
        // No memory for the rows of the next layer.
        ("snapkv", When::Cut),
        ("snapkv", When::Read),
        ("h2o", When::Read),
    ] {
        let expected = answered(&engine, method);
        let free = gpu.free_memory().expect("it answers");
        let mut greedy = Greedy {
            gpu: &gpu,
            when,
            held: Vec::new(),
        };
        let failed = asked(
            &engine,
            method,
            12,
            &mut |event| greedy.receive(event),
            &Stop::new(),
        );
        assert!(!greedy.held.is_empty());
        let failed = failed.err().expect("there is no memory");
        is_one_sentence(&failed, "the CPU");
        assert!(
            matches!(
                &failed,
                EngineError::Gpu(DeviceError::OutOfMemory { needed, .. }) if *needed > 0
            ) && failed.loses_gpu(),
            "{method} {when:?}: {failed}"
        );
        drop(greedy);
        if is_emulated(&gpu) {
            let left = gpu.free_memory().expect("it answers");
            assert_eq!(left, free, "{method} {when:?}: something is still taken");
        }
        assert_eq!(answered(&engine, method), expected, "{method} {when:?}");
    }
}

/// Stops a question after eviction in a layer, or after a number of pieces of the answer.
struct Impatient {
    stop: Stop,
    after: Option<usize>,
}

impl Impatient {
    fn receive(&mut self, event: Event<'_>) {
        match (event, &mut self.after) {
            (Event::Layer { .. }, None) | (Event::Token { .. }, Some(0)) => self.stop.request(),
            (Event::Token { .. }, Some(more)) => *more -= 1,
            (Event::Token { .. }, None) => panic!("the reading was given up"),
            _ => {}
        }
    }
}

#[test]
fn the_engine_answers_again_after_a_stop() {
    let (file, gpu) = (model(), gpu_of(1 << 30));
    let engine = on(&file, &gpu);
    for method in ["snapkv", "h2o"] {
        let expected = answered(&engine, method);
        let free = gpu.free_memory().expect("it answers");
        for after in [None, Some(0), Some(1)] {
            let stop = Stop::new();
            let mut watch = Impatient {
                stop: stop.clone(),
                after,
            };
            let given_up = asked(
                &engine,
                method,
                12,
                &mut |event| watch.receive(event),
                &stop,
            );
            match (after, given_up) {
                (None, Err(EngineError::Stopped)) => {}
                (Some(_), Ok(answer)) => {
                    assert_eq!(answer.report.finish, Finish::Stopped, "{method}");
                    assert!(expected.0.starts_with(&answer.text), "{method}");
                    assert!(answer.text.len() < expected.0.len(), "{method}");
                }
                (_, Ok(answer)) => panic!("{method} {after:?}: {}", answer.text),
                (_, Err(error)) => panic!("{method} {after:?}: {error}"),
            }
            if is_emulated(&gpu) {
                let left = gpu.free_memory().expect("it answers");
                assert_eq!(left, free, "{method} {after:?}: something is still taken");
            }
            assert_eq!(answered(&engine, method), expected, "{method} {after:?}");
        }
    }
}

/// On the emulator only: a failed GPU is lost for the whole process, and this process has more tests to run.
#[test]
fn a_failed_gpu_gives_one_error_message() {
    if without_emulator() {
        return;
    }
    let file = model();
    let whole = on(&file, &emulated::device(90, 1 << 30));
    for method in ["snapkv", "h2o"] {
        let (gpu, meter) = emulated::fault_injecting(90, 1 << 30);
        let engine = on(&file, &gpu);
        let before = meter.launches();
        let expected = answered(&engine, method);
        let of_all = meter.launches() - before;
        for part in 0..4 {
            // During prefill and during decode, with and without a CUDA graph.
            let (gpu, meter) = emulated::fault_injecting(90, 1 << 30);
            let engine = on(&file, &gpu);
            meter.fails_after(part * of_all / 4);
            for _ in 0..2 {
                let failed = asked(&engine, method, 12, &mut |_| (), &Stop::new());
                let failed = failed.err().expect("a GPU that failed");
                is_one_sentence(&failed, "the CPU");
                assert!(failed.loses_gpu(), "{method} {part}: {failed}");
            }
        }
        assert_eq!(answered(&whole, method), expected, "{method}");
    }
}

/// The server names the failure to the client, and ends with it: it could answer nothing more.
#[test]
fn a_failed_gpu_ends_the_server() {
    if without_emulator() {
        return;
    }
    let file = model();
    let (gpu, meter) = emulated::fault_injecting(90, 1 << 30);
    let engine = on(&file, &gpu);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    let settings = kept_serve::Settings {
        model: "tiny".into(),
        token: "secret".into(),
        origins: Vec::new(),
        method: MethodSpec::plain("snapkv"),
        budget: Some(Budget::Rows(40)),
        max_tokens: 5,
        limits: Limits::from(Streaming::Off),
        vault: None,
    };
    let serving =
        thread::spawn(move || kept_serve::serve(engine, listener, settings, &Stop::new()));
    let ask = || {
        let agent = ureq::Agent::config_builder().http_status_as_error(false);
        let reply = ureq::Agent::from(agent.build())
            .post(format!("http://{address}/v1/chat/completions"))
            .header("Authorization", "Bearer secret")
            .send_json(json!({"messages": [{"role": "user", "content": "the word and the word"}]}));
        let mut reply = reply.expect("a reply");
        (
            reply.status().as_u16(),
            reply.body_mut().read_json::<Value>().expect("JSON"),
        )
    };
    assert_eq!(ask().0, 200);
    meter.fails_after(0);
    let (status, reply) = ask();
    let sentence = reply["error"]["message"].as_str().expect("a sentence");
    assert!(
        status == 500 && sentence.contains("GPU"),
        "{status} {reply}"
    );
    let ended = serving.join().expect("no panic").expect_err("an error");
    assert!(
        sentence.contains(&ended.to_string()),
        "{ended} | {sentence}"
    );
}

/// Whether this build has a GPU to lose; prints a note if not.
fn has_a_gpu() -> bool {
    #[cfg(feature = "cuda")]
    match kept_cuda::nvidia::gpus() {
        Ok(_) => return true,
        Err(why) => eprintln!("skipped: no CUDA device ({why})"),
    }
    #[cfg(not(feature = "cuda"))]
    eprintln!("skipped: no CUDA device (this build has no kernels for one)");
    false
}

/// The worker on a GPU that traps during prefill, and during decode: its message, exit code 71, and a second worker
/// that answers.
#[test]
fn a_worker_with_a_failed_gpu_exits_with_71() {
    if !has_a_gpu() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("note.txt");
    let text = "The market day of Saltmarrow is Thursday. The locker code of Ann Quorvin is 4711. ";
    std::fs::write(&path, text.repeat(4)).expect("a document");
    let question = "What is the locker code of Ann Quorvin?";
    let start = |variables: &[(&str, &str)]| {
        let mut worker = Worker::start_as(&["--device", "cuda:0"], variables);
        worker.find(|reply| matches!(reply, Reply::Hello));
        worker.say(&open_model("mini"));
        worker.say(&open_document(path.clone()));
        worker.find(|reply| matches!(reply, Reply::Tokens { .. }));
        worker
    };
    let endless = Request::Ask {
        ticket: 1,
        ask: endless(question, "h2o", 3000),
    };
    for (launch, question, answers) in [
        ("20", &ask(1, question, "snapkv"), false),
        // In the middle of the answer: a token is one launch.
        ("400", &endless, true),
    ] {
        let mut worker = start(&[("KEPT_GPU_FAULT", launch)]);
        worker.say(question);
        let heard = worker.until(is_end);
        let said = (heard.iter()).any(|(reply, _)| matches!(reply, Reply::Token { .. }));
        assert_eq!(said, answers, "launch {launch}");
        match heard.last() {
            Some((
                Reply::Failed {
                    what: Failure::Ask,
                    message,
                    stopped: false,
                    ..
                },
                _,
            )) => {
                assert!(
                    message.contains("GPU") && message.contains("failed in"),
                    "{message}"
                );
                assert!(
                    message.contains("CPU") && !message.contains('\n'),
                    "{message}"
                );
            }
            other => panic!("launch {launch}: {other:?}"),
        }
        let ended = worker.wait();
        assert_eq!(ended.code, Some(71), "launch {launch}: {}", ended.stderr);
        assert!(!ended.stderr.contains("bug"), "{}", ended.stderr);
    }
    let mut worker = start(&[]);
    worker.say(&ask(2, question, "snapkv"));
    match worker.find(is_end).0 {
        Reply::Answered { answer, .. } => assert!(answer.text.contains("4711"), "{}", answer.text),
        other => panic!("{other:?}"),
    }
}
