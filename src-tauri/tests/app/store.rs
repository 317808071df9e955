//! State that survives a restart, in real SQLite files; if a file is unusable, the app still starts.

use std::path::Path;
use std::sync::{Arc, Mutex};

use kept_app::contract::{Facts, Parameters, Settings, Source, Theme, Turn, TurnState};
use kept_app::library::BegunDownload;
use kept_app::state::{self, AppState, Effect, ModelEntry, OpenDocument, Remembered, Save};
use kept_app::store::{self, Opened};
use kept_engine::MapGrid;
use kept_worker::protocol::{DocumentInfo, PageInfo};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

fn document(id: u64) -> OpenDocument {
    let info = DocumentInfo {
        name: "a é.pdf".into(),
        kind: "pdf".into(),
        encoding: "PDF".into(),
        source_bytes: 999,
        skipped_bytes: 0,
        malformed: 1,
        unread_pages: vec![3],
        pages: vec![PageInfo {
            number: 1,
            start: 0,
            end: 6,
        }],
        notes: vec!["page 3 is damaged".into()],
        parts: Vec::new(),
    };
    OpenDocument::new(id, info, Arc::from("é\u{1F600}"), false)
}

fn turn(id: u64, state: TurnState) -> Turn {
    Turn {
        id,
        question: "Why? \u{0} 'quoted'".into(),
        answer: "Because \u{1F600}".into(),
        state,
        error: None,
        method: "snapkv".into(),
        parameters: [("w".to_owned(), "8".to_owned())].into(),
        budget: Some("25%".into()),
        cache: Some("q8_0".into()),
        memory: Some("6 GiB".into()),
        model: "mini".into(),
        sources: vec![Source {
            start: 1,
            end: 3,
            page: Some(1),
            document: Some("b.pdf".into()),
            text: "\u{1F600}".into(),
            weight: 0.25,
            kept: 0.5,
        }],
        facts: Some(Box::new(Facts {
            turns_seen: 0,
            finish: "end".into(),
            prompt_tokens: 10,
            answer_tokens: 2,
            rows: 2.5,
            kept_bytes: 1,
            full_bytes: 4,
            first_token_seconds: 0.1,
            prefill_seconds: 0.2,
            decode_seconds: 0.3,
            tokens_per_second: 4.5,
            chosen: None,
            tokens_from_vault: 0,
            streamed: false,
            cache: "q8_0".into(),
            notes: vec!["a note".into()],
        })),
        has_map: true,
        thinking: true,
        windows: vec![Some(512), None],
    }
}

fn map() -> MapGrid {
    let mut map = MapGrid::new(2, 3, vec![1, 3]);
    map.set_layer(0, &[3, 1]).expect("fits");
    map.set_layer(1, &[0, 2]).expect("fits");
    map
}

/// Opens, writes, closes.
async fn write(folder: &Path, saves: Vec<Save>) {
    let opened = store::open(folder).await.expect("opens");
    let complaints = Arc::new(Mutex::new(Vec::new()));
    let (writer, task) = store::start_writing(opened.store, {
        let complaints = complaints.clone();
        move |sentence| complaints.lock().expect("whole").push(sentence)
    });
    for save in saves {
        writer.save(save);
    }
    writer.close().await;
    task.await.expect("ends");
    assert_eq!(*complaints.lock().expect("whole"), [] as [String; 0]);
}

fn shared(map: MapGrid) -> state::SharedMap {
    Arc::new(Mutex::new(map))
}

fn save_turn(document: u64, turn: &Turn) -> Save {
    Save::Turn {
        document,
        turn: Box::new(turn.clone()),
    }
}

/// Settings of which several differ from the defaults.
fn dark_settings() -> Settings {
    let kernel: Parameters = [("kernel".to_owned(), "5".to_owned())].into();
    Settings {
        theme: Theme::Dark,
        budget: Some("64MiB".into()),
        zoom: 130,
        parameters: [("snapkv".to_owned(), kernel)].into(),
        ..state::default_settings()
    }
}

fn stretched_model() -> ModelEntry {
    ModelEntry {
        choice: kept_app::contract::ModelChoice {
            id: "m1".into(),
            label: "big.gguf".into(),
            in_box: false,
            stretch: Some("yarn:4".into()),
        },
        path: "/models/big.gguf".into(),
        opened: true,
    }
}

fn begun_downloads() -> Vec<BegunDownload> {
    vec![BegunDownload {
        reference: "a/b-GGUF:m.gguf".parse().expect("a name"),
        files: vec![kept_hub::HubFile {
            repo: "a/b-GGUF".parse().expect("a name"),
            commit: "c".repeat(40),
            path: "m.gguf".into(),
            bytes: 5,
            sha256: "e".repeat(64),
        }],
    }]
}

#[tokio::test]
async fn all_saved_state_is_restored_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = store::open(folder.path()).await.expect("opens");
    assert!(!first.remembered.started_before);
    first.store.close().await;

    let (settings, model, begun) = (dark_settings(), stretched_model(), begun_downloads());
    let asked = turn(5, TurnState::Asked);
    let done = turn(5, TurnState::Done);
    write(
        folder.path(),
        vec![
            Save::Settings(Box::new(settings.clone())),
            Save::Model(model.clone()),
            Save::Document(Arc::new(document(3))),
            save_turn(3, &asked),
            Save::Map {
                turn: 5,
                map: shared(map()),
            },
            save_turn(3, &done),
            Save::Thinking(true),
            Save::Downloads(begun.clone()),
            Save::Draft("and wh\u{e9}re?".into()),
        ],
    )
    .await;

    let Opened {
        store,
        remembered,
        notice,
    } = store::open(folder.path()).await.expect("opens");
    assert_eq!(notice, None);
    let Remembered {
        settings: kept,
        models,
        document: opened,
        turns,
        draft,
        thinking,
        downloads,
        last_document,
        last_turn,
        started_before,
    } = remembered;
    assert!(thinking);
    assert_eq!(downloads, begun);
    assert_eq!(kept, Some(settings));
    assert_eq!(models, [model]);
    assert_eq!(opened, Some(document(3)));
    assert_eq!(turns, [done]);
    assert_eq!(draft, "and wh\u{e9}re?");
    assert_eq!((last_document, last_turn, started_before), (3, 5, true));
    assert_eq!(store.map(5).await.expect("read"), Some(map()));
    assert_eq!(store.map(6).await.expect("read"), None);
}

#[tokio::test]
async fn an_appended_document_keeps_the_conversation() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut grown = document(1);
    grown.info.parts = vec![kept_worker::protocol::PartInfo {
        document: grown.info.clone(),
        start: 0,
        end: grown.text.len(),
    }];
    let grown = OpenDocument::new(1, grown.info, grown.text, false);
    write(
        folder.path(),
        vec![
            Save::Document(Arc::new(document(1))),
            save_turn(1, &turn(1, TurnState::Done)),
            Save::Grown(Arc::new(grown.clone())),
            // A document that was closed in the meantime is not restored.
            Save::Grown(Arc::new(document(9))),
        ],
    )
    .await;
    let remembered = store::open(folder.path()).await.expect("opens").remembered;
    assert_eq!(remembered.document, Some(grown));
    let turns: Vec<u64> = remembered.turns.iter().map(|turn| turn.id).collect();
    assert_eq!(turns, [1]);
}

#[tokio::test]
async fn replacing_or_closing_a_document_deletes_its_turns_and_maps() {
    let folder = tempfile::tempdir().expect("a folder");
    write(
        folder.path(),
        vec![
            Save::Document(Arc::new(document(1))),
            save_turn(1, &turn(1, TurnState::Done)),
            Save::Map {
                turn: 1,
                map: shared(map()),
            },
            Save::Document(Arc::new(document(2))),
            // Late writes of the old conversation.
            save_turn(1, &turn(1, TurnState::Done)),
            Save::Map {
                turn: 1,
                map: shared(map()),
            },
        ],
    )
    .await;
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.remembered.document.map(|d| d.id), Some(2));
    assert_eq!(opened.remembered.turns, []);
    assert_eq!(opened.store.map(1).await.expect("read"), None);
    opened.store.close().await;

    write(
        folder.path(),
        vec![
            save_turn(2, &turn(2, TurnState::Done)),
            Save::NoTurns { document: 2 },
        ],
    )
    .await;
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.remembered.turns, []);
    assert_eq!(opened.remembered.last_turn, 2, "no id is used twice");
    opened.store.close().await;

    write(folder.path(), vec![Save::NoDocument]).await;
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.remembered.document, None);
}

#[tokio::test]
async fn a_closed_document_leaves_no_bytes_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut secret = turn(1, TurnState::Done);
    secret.answer = "the locker code is 4711-secret-word".into();
    write(
        folder.path(),
        vec![
            Save::Document(Arc::new(document(1))),
            save_turn(1, &secret),
            Save::NoDocument,
        ],
    )
    .await;
    for file in std::fs::read_dir(folder.path()).expect("lists") {
        let path = file.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("reads");
        let found = bytes.windows(11).any(|window| window == b"secret-word");
        assert!(!found, "{} still holds it", path.display());
    }
}

#[tokio::test]
async fn after_a_kill_the_partial_answer_is_restored_as_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let mut running = turn(1, TurnState::Answering);
    running.facts = None;
    running.has_map = false;
    opened
        .store
        .replace_document(Some(&document(1)))
        .await
        .expect("written");
    opened.store.set_turn(1, &running).await.expect("written");
    opened
        .store
        .set("settings", &state::default_settings())
        .await
        .expect("written");
    // The store is not closed, as after SIGKILL. The write-ahead log is read at the next start.
    let copy = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(folder.path()).expect("lists") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copied");
    }
    let opened = store::open(copy.path()).await.expect("opens");
    assert_eq!(opened.notice, None);
    let mut state = AppState::new(opened.remembered, true);
    let turns = state.snapshot().turns;
    assert_eq!(turns[0].state, TurnState::Failed);
    assert_eq!(turns[0].error.as_deref(), Some(state::CLOSED_BEFORE_END));
    assert_eq!(turns[0].answer, running.answer);
    assert!(
        state
            .take_effects()
            .iter()
            .any(|effect| matches!(effect, Effect::Save(Save::Turn { .. })))
    );
}

/// Checks a start with an unusable file: an empty state, a sentence, and the old file moved aside unchanged.
async fn starts_empty_with_a_sentence(folder: &Path, old: &[u8]) {
    let opened = store::open(folder).await.expect("opens all the same");
    let notice = opened.notice.expect("a sentence");
    assert!(notice.contains("was moved to"), "{notice}");
    assert!(opened.remembered.document.is_none());
    assert!(!opened.remembered.started_before);
    let aside = std::fs::read_dir(folder)
        .expect("lists")
        .map(|file| file.expect("an entry").path())
        .find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("kept-unreadable-") && name.ends_with(".db"))
        })
        .expect("the old file is kept");
    assert!(notice.contains(&aside.display().to_string()), "{notice}");
    assert_eq!(std::fs::read(&aside).expect("reads"), old);
    opened.store.close().await;
    let again = store::open(folder).await.expect("opens");
    assert_eq!(again.notice, None, "said once");
}

#[tokio::test]
async fn a_damaged_database_is_moved_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let garbage = vec![0x5au8; 70_000];
    std::fs::write(folder.path().join("kept.db"), &garbage).expect("written");
    starts_empty_with_a_sentence(folder.path(), &garbage).await;

    // A formerly valid file with overwritten pages.
    let folder = tempfile::tempdir().expect("a folder");
    let mut long = turn(1, TurnState::Done);
    long.answer = "word ".repeat(20_000);
    write(
        folder.path(),
        vec![Save::Document(Arc::new(document(1))), save_turn(1, &long)],
    )
    .await;
    let path = folder.path().join("kept.db");
    let mut bytes = std::fs::read(&path).expect("reads");
    let from = bytes.len() / 4;
    bytes[from..].fill(0xff);
    std::fs::write(&path, &bytes).expect("written");
    starts_empty_with_a_sentence(folder.path(), &bytes).await;
}

async fn connect(folder: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(folder.join("kept.db"));
    SqliteConnection::connect_with(&options)
        .await
        .expect("connects")
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_moved_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), vec![Save::Document(Arc::new(document(1)))]).await;
    let mut connection = connect(folder.path()).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time) \
         VALUES (9000, 'from the future', CURRENT_TIMESTAMP, 1, x'00', 1)",
    )
    .execute(&mut connection)
    .await
    .expect("written");
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(&mut connection)
        .await
        .expect("checkpointed");
    connection.close().await.expect("closed");
    let bytes = std::fs::read(folder.path().join("kept.db")).expect("reads");
    starts_empty_with_a_sentence(folder.path(), &bytes).await;
}

#[tokio::test]
async fn invalid_values_count_as_a_damaged_database() {
    for sentence in [
        "UPDATE turn SET state = 'dreaming'",
        "UPDATE turn SET sources = 'no json'",
        "UPDATE document SET text = x'00ff00ff'",
        "UPDATE document SET info = '{}'",
        "INSERT INTO setting VALUES ('settings', '[]')",
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        write(
            folder.path(),
            vec![
                Save::Document(Arc::new(document(1))),
                save_turn(1, &turn(1, TurnState::Done)),
            ],
        )
        .await;
        let mut connection = connect(folder.path()).await;
        sqlx::query(sentence)
            .execute(&mut connection)
            .await
            .expect("written");
        connection.close().await.expect("closed");
        let opened = store::open(folder.path()).await.expect("opens");
        assert!(opened.notice.is_some(), "{sentence}");
    }
}

#[tokio::test]
async fn a_damaged_map_is_an_error_and_the_rest_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    write(
        folder.path(),
        vec![
            Save::Document(Arc::new(document(1))),
            save_turn(1, &turn(1, TurnState::Done)),
            Save::Map {
                turn: 1,
                map: shared(map()),
            },
        ],
    )
    .await;
    let mut connection = connect(folder.path()).await;
    sqlx::query("UPDATE map SET bytes = x'00ff'")
        .execute(&mut connection)
        .await
        .expect("written");
    connection.close().await.expect("closed");
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.notice, None);
    assert_eq!(opened.remembered.turns.len(), 1);
    assert!(opened.store.map(1).await.is_err());
}

#[tokio::test]
async fn a_map_still_being_written_can_be_read() {
    let opened = store::open_in_memory().await.expect("opens");
    let (writer, _task) = store::start_writing(opened.store, |sentence| panic!("{sentence}"));
    writer.save(Save::Document(Arc::new(document(1))));
    writer.save(save_turn(1, &turn(1, TurnState::Done)));
    writer.save(Save::Map {
        turn: 1,
        map: shared(map()),
    });
    assert_eq!(writer.map(1).await.expect("read"), Some(map()));
}

#[tokio::test]
async fn a_failing_store_is_reported_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    opened.store.close().await;
    let complaints = Arc::new(Mutex::new(Vec::new()));
    let (writer, task) = store::start_writing(opened.store, {
        let complaints = complaints.clone();
        move |sentence| complaints.lock().expect("whole").push(sentence)
    });
    writer.save(Save::Draft("a".into()));
    writer.save(Save::Draft("b".into()));
    writer.close().await;
    task.await.expect("ends");
    let complaints = complaints.lock().expect("whole");
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("could not be saved"));
}

#[test]
fn only_one_process_locks_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let held = store::lock(folder.path()).expect("locks").expect("is free");
    assert!(store::lock(folder.path()).expect("asks").is_none());
    drop(held);
    assert!(store::lock(folder.path()).expect("asks").is_some());
    assert!(store::lock(&folder.path().join("missing")).is_err());
}
