//! Many questions through one `kept-worker`: no answer may differ from its first, and memory, threads and open files may
//! not grow. Every seventh question is stopped. Exits 1 if an answer differs.
//!
//! KEPT_BIN=target/release/kept load-worker [QUESTIONS]

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Instant;

use kept_tests::golden::repository;
use kept_tests::worker::{Worker, ask, is_end, open_document, open_model, sample};
use kept_worker::protocol::{Reply, Request};

const QUESTIONS: [&str; 3] = [
    "What is the locker code of Ann Quorvin?",
    "Which plant grows in the yard?",
    "What is this text about?",
];
const BUDGETS: [&str; 3] = ["64", "10%", "100%"];
/// Questions between two lines of the table.
const STEP: u64 = 500;

/// Kilobytes of resident memory, threads and open files of a process.
fn state(pid: u32) -> [u64; 3] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        word.and_then(|word| word.parse().ok()).expect("a number")
    };
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    [number("VmRSS:"), number("Threads:"), files.count() as u64]
}

/// The requests: every method with three budgets, a question for each; half of them at a temperature.
fn requests() -> Vec<Request> {
    let mut all = Vec::new();
    for method in kept_policies::methods() {
        for (budget, question) in BUDGETS.iter().zip(QUESTIONS) {
            let mut request = ask(0, question, method.name);
            let Request::Ask { ask, .. } = &mut request else {
                unreachable!()
            };
            ask.budget = (method.name != "full").then(|| (*budget).to_owned());
            ask.temperature = (all.len() % 2) as f64 * 0.7;
            ask.max_tokens = 24;
            all.push(request);
        }
    }
    all
}

fn main() -> ExitCode {
    let count = std::env::args().nth(1).map_or(10_000, |count| {
        count.parse().expect("a number of questions")
    });
    let mut worker = Worker::start();
    worker.say(&Request::KeepDocuments {
        ticket: 0,
        kind: "f16".to_owned(),
        budget: None,
    });
    worker.say(&open_model(
        repository()
            .join("assets/mini.gguf")
            .to_str()
            .expect("UTF-8"),
    ));
    worker.say(&open_document(sample()));
    worker.find(|reply| matches!(reply, Reply::Tokens { .. }));

    let requests = requests();
    let mut first: HashMap<usize, String> = HashMap::new();
    let (mut same, mut different, mut stopped, mut refused) = (0, 0, 0, 0);
    let started = Instant::now();
    println!("questions   same  different  stopped  refused   memory KB  threads  files  seconds");
    for ticket in 1..=count {
        // A prime number of steps, so that each request is stopped in turn.
        let which = (ticket as usize * 31) % requests.len();
        let mut request = requests[which].clone();
        if let Request::Ask { ticket: own, .. } = &mut request {
            *own = ticket;
        }
        worker.say(&request);
        if ticket % 7 == 0 {
            worker.say(&Request::Stop { ticket });
        }
        match worker.find(is_end).0 {
            Reply::Answered { answer, .. } => {
                let passages: Vec<&str> = answer.sources.iter().map(|s| s.text.as_str()).collect();
                let found = format!("{}{:?}{passages:?}", answer.text, answer.rows_per_layer);
                if answer.report.finish == kept_engine::Finish::Stopped {
                    stopped += 1;
                } else if *first.entry(which).or_insert_with(|| found.clone()) == found {
                    same += 1;
                } else {
                    println!("{request:?}: {found}, first {}", first[&which]);
                    different += 1;
                }
            }
            Reply::Failed { stopped: true, .. } => stopped += 1,
            other => {
                println!("{request:?}: {other:?}");
                refused += 1;
            }
        }
        if ticket % STEP == 0 || ticket == count {
            let [memory, threads, files] = state(worker.pid());
            println!(
                "{ticket:9} {same:6} {different:10} {stopped:8} {refused:8} {memory:11} {threads:8} {files:6} {:8.0}",
                started.elapsed().as_secs_f64()
            );
        }
    }
    assert_eq!(worker.close().code, Some(0));
    ExitCode::from(u8::from(different + refused > 0))
}
