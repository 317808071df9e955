//! State that survives a restart, in real SQLite files; if a file is unusable, the app still starts.

use std::path::Path;
use std::sync::{Arc, Mutex};

use kept_app::contract::{
    Attended, Choice, Comparison, ComparisonRun, ComparisonState, ConversationEntry, Drafts,
    ElsewhereState, Facts, Parameters, RunResult, Settings, Snapshot, Source, Theme, Turn,
    TurnState,
};
use kept_app::state::BegunDownload;
use kept_app::state::Open;
use kept_app::state::{
    self, AppState, EarlierMap, EarlierTexts, ModelEntry, OpenDocument, Remembered, Save, TurnMap,
};
use kept_app::store::{self, Opened};
use kept_engine::documents::{Document, Kind, Page, Part};
use kept_engine::{AttentionGrid, EvictionLog, HeadAttention, MapGrid, MethodSpec};
use kept_eval::fidelity::RunReport;
use kept_worker::protocol::Speed;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

fn document(id: u64) -> OpenDocument {
    let info = Document {
        name: "a é.pdf".into(),
        // The second one has slides.
        kind: Kind::from_code(if id == 2 { "PPTX" } else { "pdf" }),
        encoding: "PDF".into(),
        source_bytes: 999,
        skipped_bytes: 0,
        malformed: 1,
        unread_pages: vec![3],
        image_pages: vec![2],
        pages: vec![Page {
            number: 1,
            range: 0..6,
        }],
        ..Document::empty()
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
        instructions: "Be brief.".into(),
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
            turns_kept: None,
            doubt: None,
            citations: Vec::new(),
            finish: kept_engine::Finish::End,
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
        version_of: None,
        has_lift: false,
        has_replay: true,
        levels: 0,
        levels_done: false,
    }
}

fn grid() -> MapGrid {
    let mut map = MapGrid::new(2, 3, vec![1, 3]);
    map.set_layer(0, &[3, 1]).expect("fits");
    map.set_layer(1, &[0, 2]).expect("fits");
    map
}

/// With an earlier turn.
fn map() -> TurnMap {
    let mut earlier = MapGrid::new(2, 3, vec![4, 12]);
    earlier.set_heads(0, &[0b101, 0]).expect("fits");
    let turn = kept_engine::Turn {
        question: "Wh\u{e9}?".to_owned(),
        answer: "There.".to_owned(),
    };
    TurnMap {
        document: grid(),
        earlier: Some(EarlierMap {
            texts: EarlierTexts {
                turns: vec![turn],
                left_out: 2,
            },
            grid: earlier,
        }),
        attended: vec![Attended {
            said: 2,
            cells: vec![(1, 255), (0, 40)],
        }],
        by_head: by_head(),
        evictions: evictions(),
    }
}

/// The second token lost two slots at the third token of the answer.
fn evictions() -> EvictionLog {
    let words = [3u32, 1, 2, 1, 2].map(u32::to_le_bytes).concat();
    EvictionLog::from_bytes(&words, 2).expect("valid")
}

/// Of the second head of the first layer.
fn by_head() -> AttentionGrid {
    let tokens = vec![(1, 0.75), (0, 0.25)];
    let head = HeadAttention {
        layer: 0,
        head: 1,
        tokens,
    };
    AttentionGrid::new(&grid(), &[head])
}

/// Opens, writes, closes.
async fn write(folder: &Path, saves: Vec<Save>) {
    let opened = store::open(folder).await.expect("opens");
    let (writer, task) = store::start_writing(opened.store, |_| panic!("a write failed"));
    for save in saves {
        writer.save(save);
    }
    writer.close().await;
    task.await.expect("ends");
}

fn shared<T>(map: T) -> state::SharedMap<T> {
    Arc::new(Mutex::new(map))
}

fn save_turn(conversation: u64, turn: &Turn) -> Save {
    Save::Turn {
        conversation,
        turn: Box::new(turn.clone()),
    }
}

fn conversation(id: u64, document_id: u64) -> ConversationEntry {
    ConversationEntry {
        id,
        title: turn(id, TurnState::Done).question,
        document: "a é.pdf".into(),
        document_id,
        pages: document(document_id).facts.pages.len(),
        page_noun: document(document_id).facts.page_noun,
        first: turn(id, TurnState::Done).question,
        questions: 1,
        updated: 1000 + id,
        pinned: false,
    }
}

fn save_conversation(conversation: ConversationEntry) -> Save {
    Save::Conversation(Box::new(conversation))
}

/// The writes of an open document with this id and a conversation with the same id.
fn begin(document: OpenDocument) -> Vec<Save> {
    let id = document.facts.id;
    vec![
        Save::Document(Arc::new(document)),
        save_conversation(conversation(id, id)),
        Save::Open(Open {
            document: Some(id),
            conversation: Some(id),
        }),
    ]
}

/// [`begin`], then the turn of the same id with its map.
fn begun(id: u64) -> Vec<Save> {
    let mut saves = begin(document(id));
    saves.push(save_turn(id, &turn(id, TurnState::Done)));
    saves.push(Save::Map {
        turn: id,
        map: shared(map()),
    });
    saves
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
    let written = Drafts::from([("conversation 3".into(), "and wh\u{e9}re?".into())]);
    let mut saves = vec![
        Save::Settings(Box::new(settings.clone())),
        Save::Model(model.clone()),
    ];
    saves.extend(begin(document(3)));
    saves.extend([
        save_turn(3, &asked),
        Save::Map {
            turn: 5,
            map: shared(map()),
        },
        save_turn(3, &done),
        Save::Thinking(true),
        Save::Downloads(begun.clone()),
        Save::Speed(Speed { product_rate: 2.5 }),
        Save::Drafts(written.clone()),
        Save::VaultsToClear(vec!["lease.pdf".into()]),
    ]);
    write(folder.path(), saves).await;

    let Opened {
        store,
        remembered,
        notice,
    } = store::open(folder.path()).await.expect("opens");
    assert_eq!(notice, None);
    let Remembered {
        settings: kept,
        models,
        interrupted,
        document: opened,
        comparison,
        conversation: current,
        turns,
        conversations,
        drafts,
        vaults_to_clear,
        thinking,
        downloads,
        speed,
        last_document,
        last_turn,
        last_conversation,
        started_before,
    } = remembered;
    assert_eq!(comparison, None);
    assert!(interrupted.is_empty());
    assert_eq!((current, last_conversation), (Some(3), 3));
    assert_eq!(conversations, [conversation(3, 3)]);
    assert!(thinking);
    assert_eq!(downloads, begun);
    assert_eq!(speed, Some(Speed { product_rate: 2.5 }));
    assert_eq!(kept, Some(settings));
    assert_eq!(models, [model]);
    assert_eq!(opened, Some(document(3)));
    assert_eq!(turns, [done]);
    assert_eq!(drafts, written);
    assert_eq!(vaults_to_clear, ["lease.pdf"]);
    assert_eq!((last_document, last_turn, started_before), (3, 5, true));
    assert_eq!(store.map(5).await.expect("read"), Some(map()));
    assert_eq!(store.map(6).await.expect("read"), None);
}

fn comparison() -> Comparison {
    let method = MethodSpec::plain("snapkv");
    let refused = Err("a budget that is too small".to_owned());
    Comparison {
        id: 7,
        question: "Why?".into(),
        document: "a.pdf".into(),
        model: "mini".into(),
        max_tokens: 64,
        cache: Some("q8_0".into()),
        state: ComparisonState::Running,
        error: None,
        reference: None,
        runs: vec![ComparisonRun {
            choice: Choice::plain("snapkv", Some("25%")),
            result: Some(RunResult {
                seconds: 1.5,
                report: RunReport::new(&method, "25%", 100, refused),
            }),
        }],
        current: Some(0),
        sharing: 1,
        progress: None,
    }
}

fn save_comparison(comparison: Option<Comparison>) -> Save {
    Save::Comparison {
        document: 1,
        comparison: comparison.map(Box::new),
    }
}

fn save_compared(run: Option<usize>, bytes: &[u8]) -> Save {
    Save::ComparedMap {
        document: 1,
        run,
        bytes: bytes.to_vec(),
    }
}

#[tokio::test]
async fn a_comparison_is_kept_with_its_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut saves = begun(1);
    saves.extend([
        save_compared(None, &[9]),
        save_comparison(Some(comparison())),
        save_compared(Some(3), &[8]),
        save_compared(None, &[1, 0, 0, 0]),
        save_compared(Some(0), &[7]),
        save_compared(Some(0), &[6]),
        save_comparison(Some(Comparison {
            question: "Why now?".into(),
            ..comparison()
        })),
    ]);
    write(folder.path(), saves).await;
    let Opened {
        store, remembered, ..
    } = store::open(folder.path()).await.expect("open");
    let stored = remembered.comparison.expect("a comparison");
    assert_eq!(stored.comparison.question, "Why now?");
    assert_eq!(stored.comparison.runs, comparison().runs);
    assert_eq!(stored.maps.ends, [1, 0, 0, 0]);
    assert_eq!(stored.maps.shares, [(0, vec![6])].into());
    let loaded = store.conversation(1, None).await.expect("read");
    assert!(loaded.expect("a conversation").comparison.is_some());
    store.close().await;

    // Of another version, it is left out, and everything else is there.
    let mut connection = connect(folder.path()).await;
    sqlx::query("UPDATE comparison SET body = '{}'")
        .execute(&mut connection)
        .await
        .expect("changed");
    connection.close().await.expect("closed");
    let opened = store::open(folder.path()).await.expect("open");
    assert!(opened.remembered.comparison.is_none() && opened.notice.is_none());
    assert!(opened.remembered.document.is_some());
    opened.store.close().await;

    write(folder.path(), vec![save_comparison(None)]).await;
    let mut connection = connect(folder.path()).await;
    for table in ["comparison", "compared_map"] {
        let count = format!("SELECT count(*) FROM {table}");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count))
            .fetch_one(&mut connection)
            .await
            .expect("counted");
        assert_eq!(count, 0, "{table}");
    }
}

#[tokio::test]
async fn an_appended_document_keeps_the_conversation() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut grown = document(1);
    grown.info.parts = vec![Part {
        document: grown.info.clone(),
        range: 0..grown.text.len(),
    }];
    let grown = OpenDocument::new(1, grown.info, grown.text, false);
    let mut saves = begun(1);
    saves.push(Save::Document(Arc::new(grown.clone())));
    write(folder.path(), saves).await;
    let remembered = store::open(folder.path()).await.expect("opens").remembered;
    assert_eq!(remembered.document, Some(grown));
    let turns: Vec<u64> = remembered.turns.iter().map(|turn| turn.id).collect();
    assert_eq!(turns, [1]);
}

#[tokio::test]
async fn versions_and_copies_of_maps_are_kept_and_a_removed_question_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut saves = begun(1);
    let version = Turn {
        version_of: Some(1),
        ..turn(2, TurnState::Done)
    };
    saves.push(save_turn(1, &version));
    let version = Turn {
        has_lift: true,
        levels: 0,
        levels_done: false,
        ..version
    };
    saves.push(Save::Neutral {
        turn: 1,
        map: shared(grid()),
    });
    saves.push(Save::CopyMap { from: 1, to: 2 });
    let waiting = Turn {
        has_map: false,
        has_replay: false,
        model: "mini".into(),
        thinking: false,
        ..turn(3, TurnState::Waiting)
    };
    let asked = Turn {
        state: TurnState::Asked,
        model: "other".into(),
        thinking: true,
        ..waiting.clone()
    };
    saves.push(save_turn(1, &waiting));
    saves.push(save_turn(1, &asked));
    saves.push(save_turn(1, &turn(4, TurnState::Waiting)));
    saves.push(Save::RemoveTurn(4));
    write(folder.path(), saves).await;
    let opened = store::open(folder.path()).await.expect("opens");
    let failed = Turn {
        state: TurnState::Failed,
        error: Some(state::CLOSED_BEFORE_END.to_owned()),
        ..asked
    };
    let remembered = opened.remembered;
    assert_eq!(
        remembered.turns,
        [
            Turn {
                has_lift: true,
                levels: 0,
                levels_done: false,
                ..turn(1, TurnState::Done)
            },
            version,
            failed
        ],
        "with the model that was asked"
    );
    assert_eq!(remembered.conversations[0].questions, 2);
    assert_eq!(remembered.last_turn, 4, "ids are not used again");
    assert_eq!(opened.store.map(2).await.expect("read"), Some(map()));
    assert_eq!(opened.store.neutral(2).await.expect("read"), Some(grid()));
}

#[tokio::test]
async fn every_conversation_is_kept_with_its_document() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut saves = begun(1);
    saves.extend(begun(2));
    // A second conversation about the first document, with a title; then the document alone is open.
    let named = ConversationEntry {
        title: "Rent".into(),
        pinned: true,
        ..conversation(3, 1)
    };
    saves.push(save_conversation(named.clone()));
    saves.push(save_turn(3, &turn(3, TurnState::Done)));
    saves.push(Save::Document(Arc::new(document(4))));
    saves.push(Save::Open(Open {
        document: Some(4),
        conversation: None,
    }));
    write(folder.path(), saves).await;
    let opened = store::open(folder.path()).await.expect("opens");
    let remembered = opened.remembered;
    assert_eq!(remembered.document.map(|d| d.facts.id), Some(4));
    assert_eq!((remembered.conversation, remembered.turns), (None, vec![]));
    let mut known = remembered.conversations;
    known.sort_by_key(|known| known.id);
    assert_eq!(known, [conversation(1, 1), conversation(2, 2), named]);
    let load = async |id, open| opened.store.conversation(id, open).await.expect("read");
    let loaded = load(2, Some(Arc::new(document(1)))).await.expect("there");
    assert_eq!(loaded.conversation, 2);
    assert_eq!(*loaded.document, document(2));
    assert_eq!(loaded.turns, [turn(2, TurnState::Done)]);
    assert_eq!(opened.store.map(2).await.expect("read"), Some(map()));
    assert!(load(9, None).await.is_none());
    // The open document is not read again.
    let open = Arc::new(document(2));
    let loaded = load(2, Some(open.clone())).await.expect("there");
    assert!(Arc::ptr_eq(&loaded.document, &open));
}

#[tokio::test]
async fn a_document_without_questions_is_forgotten_when_it_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |document| {
        Save::Open(Open {
            document,
            conversation: None,
        })
    };
    let saves = vec![
        Save::Document(Arc::new(document(1))),
        open(Some(1)),
        Save::Document(Arc::new(document(2))),
        open(Some(2)),
    ];
    write(folder.path(), saves).await;
    let mut connection = connect(folder.path()).await;
    let ids: Vec<i64> = sqlx::query_scalar("SELECT id FROM document")
        .fetch_all(&mut connection)
        .await
        .expect("read");
    assert_eq!(ids, [2]);
    connection.close().await.expect("closed");
    write(folder.path(), vec![open(None)]).await;
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.remembered.document, None);
}

#[tokio::test]
async fn a_deleted_conversation_can_be_restored_until_it_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let (writer, task) = store::start_writing(opened.store, |_| panic!("a write failed"));
    let mut saves = begun(1);
    saves.extend(begun(2));
    saves.push(Save::HideConversation(1));
    saves.into_iter().for_each(|save| writer.save(save));
    let read = async || {
        let store = writer.written().await;
        store.conversation(1, None).await.expect("read")
    };
    let found = async || {
        writer
            .written()
            .await
            .search("because")
            .await
            .expect("read")
    };
    assert!(read().await.is_none());
    assert_eq!(found().await.len(), 1);
    writer.save(save_conversation(conversation(1, 1)));
    assert_eq!(read().await.expect("restored").turns.len(), 1);
    assert_eq!(found().await.len(), 2);
    writer.save(Save::HideConversation(1));
    writer.close().await;
    task.await.expect("ends");
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.remembered.conversations, [conversation(2, 2)]);
    assert_eq!(opened.remembered.last_turn, 2, "no id is used twice");
}

#[tokio::test]
async fn a_deleted_conversation_leaves_no_bytes_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut secret = turn(1, TurnState::Done);
    secret.answer = "the locker code is 4711-secret-word, zqxsecretword".into();
    let text = Arc::from("The other secret-word is in the document, wqxsecretword.");
    let mut saves = begin(OpenDocument::new(1, document(1).info, text, false));
    saves.push(save_turn(1, &secret));
    saves.push(Save::HideConversation(1));
    saves.push(Save::Open(Open::default()));
    write(folder.path(), saves).await;
    for file in std::fs::read_dir(folder.path()).expect("lists") {
        let path = file.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("reads");
        // The index of the search shortens words that begin alike.
        for secret in [b"secret-word", b"qxsecretwor"] {
            let found = bytes.windows(11).any(|window| window == secret);
            assert!(!found, "{} still holds it", path.display());
        }
    }
}

/// A text is replaced by a longer one and forgotten later, as when a document is added to another and both are closed.
#[tokio::test]
async fn replaced_and_removed_texts_leave_the_search_intact() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut word = 1u32;
    for id in 1..6 {
        // A few words, some of them in every sentence: their lists of places are long.
        let mut text = String::new();
        for _ in 0..2 {
            for _ in 0..800 {
                word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                text += &format!("w{} ", (word >> 16) % (1 + (word >> 8) % 50));
            }
            let own = OpenDocument::new(id, document(id).info, text.as_str().into(), false);
            let open = Open {
                document: Some(id),
                conversation: None,
            };
            let saves = vec![Save::Document(Arc::new(own)), Save::Open(open)];
            write(folder.path(), saves).await;
            let mut connection = connect(folder.path()).await;
            let check = sqlx::query_scalar("PRAGMA quick_check(1)");
            let check: String = check.fetch_one(&mut connection).await.expect("checked");
            assert_eq!(check, "ok", "document {id}");
            connection.close().await.expect("closed");
        }
    }
}

/// The index is made of the texts: its damage costs nothing.
#[tokio::test]
async fn a_damaged_search_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), begun(1)).await;
    let mut connection = connect(folder.path()).await;
    let damaged = sqlx::query("DELETE FROM search_data WHERE id > 10")
        .execute(&mut connection)
        .await;
    assert!(damaged.expect("deleted").rows_affected() > 0);
    connection.close().await.expect("closed");
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.notice, None);
    assert_eq!(opened.remembered.turns.len(), 1);
    assert_eq!(opened.store.search("because").await.expect("read").len(), 1);
}

#[tokio::test]
async fn questions_answers_and_documents_are_searched() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let (writer, _task) = store::start_writing(opened.store, |_| panic!("a write failed"));
    let text = "The rent is due on the first.\n\nThe Mü\u{df}ig quay is closed.\n".repeat(200);
    let text = text + "The ferry leaves at noon.";
    let lease = OpenDocument::new(1, document(1).info, text.into(), false);
    begin(lease).into_iter().for_each(|save| writer.save(save));
    let mut asked = turn(1, TurnState::Asked);
    asked.question = "When is the rent due?".into();
    asked.answer = String::new();
    writer.save(save_turn(1, &asked));
    asked.answer = "On the first of the month, says the lease.".into();
    writer.save(save_turn(1, &asked));
    let search = async |query: &str| writer.written().await.search(query).await.expect(query);
    let places = async |query: &str| {
        let found = search(query).await;
        let mut places: Vec<_> = found.iter().map(|f| (f.conversation, f.turn)).collect();
        places.sort_unstable();
        places
    };
    assert_eq!(places("rent").await, [(1, None), (1, Some(1))]);
    assert_eq!(places("RENT du").await, [(1, None), (1, Some(1))]);
    assert_eq!(
        places("month").await,
        [(1, Some(1))],
        "the answer as it is now"
    );
    // A branch has copies of the turns.
    writer.save(save_conversation(conversation(2, 1)));
    let copy = Turn {
        id: 2,
        ..asked.clone()
    };
    writer.save(save_turn(2, &copy));
    assert_eq!(places("month").await, [(1, Some(1))]);
    assert_eq!(places("rent du").await, [(1, Some(1)), (2, None)]);
    assert_eq!(places("musig").await, [], "\u{df} is not s");
    assert_eq!(
        places("mu\u{df}ig").await,
        [(2, None)],
        "accents do not matter"
    );
    for nothing in ["", " \t", "\"", "*", "absent", "rent absent"] {
        assert_eq!(places(nothing).await, [], "{nothing:?}");
    }
    let ferry = search("ferr leaves \"noon").await;
    assert_eq!(ferry, [], "only the last word may be incomplete");
    let ferry = &search("leaves \"ferry no").await[0];
    let hits: Vec<&str> = (ferry.pieces.iter().filter(|piece| piece.hit))
        .map(|piece| piece.text.as_str())
        .collect();
    assert_eq!(hits, ["ferry", "leaves", "noon"]);
}

/// A document is found once, however many conversations are about it.
#[tokio::test]
async fn documents_with_many_conversations_leave_others_in_a_search() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let (writer, _task) = store::start_writing(opened.store, |_| panic!("a write failed"));
    for id in 1..=3 {
        let text = "The ferry leaves at noon.".into();
        let own = OpenDocument::new(id, document(id).info, text, false);
        begin(own).into_iter().for_each(|save| writer.save(save));
        for more in 1..=60 {
            writer.save(save_conversation(conversation(100 * id + more, id)));
        }
    }
    let found = writer.written().await.search("ferry").await;
    let found: Vec<u64> = (found.expect("read").iter())
        .map(|passage| passage.conversation)
        .collect();
    assert_eq!(found, [160, 260, 360], "the last one about each document");
}

/// A store of the version before conversations: one document with its turns.
#[tokio::test]
async fn the_conversation_of_an_earlier_version_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut saves = begun(7);
    saves.push(save_turn(7, &turn(8, TurnState::Stopped)));
    saves.push(Save::Settings(Box::new(dark_settings())));
    write(folder.path(), saves).await;
    let mut connection = connect(folder.path()).await;
    for sentence in [
        "ALTER TABLE map DROP COLUMN earlier",
        "ALTER TABLE map DROP COLUMN earlier_map",
        "ALTER TABLE map DROP COLUMN evictions",
        "ALTER TABLE map DROP COLUMN by_head",
        "ALTER TABLE map DROP COLUMN attended",
        "ALTER TABLE map DROP COLUMN neutral",
        "ALTER TABLE turn DROP COLUMN instructions",
        "ALTER TABLE turn DROP COLUMN version_of",
        "DROP TRIGGER turn_added",
        "DROP TRIGGER turn_changed",
        "DROP TRIGGER turn_removed",
        "DROP TRIGGER document_removed",
        "DROP TABLE search",
        "DROP TABLE compared_map",
        "DROP TABLE comparison",
        "DROP INDEX turn_of_conversation",
        "UPDATE turn SET conversation = NULL",
        "ALTER TABLE turn DROP COLUMN conversation",
        "DROP TABLE conversation",
        "UPDATE setting SET value = json_remove(value, '$.instructions', '$.temperature') WHERE name = 'settings'",
        "DELETE FROM setting WHERE name IN ('open', 'last_conversation')",
        "DELETE FROM _sqlx_migrations WHERE version >= 6",
    ] {
        let done = sqlx::query(sentence).execute(&mut connection).await;
        done.expect(sentence);
    }
    connection.close().await.expect("closed");
    let opened = store::open(folder.path()).await.expect("opens");
    assert_eq!(opened.notice, None);
    let remembered = opened.remembered;
    assert_eq!(remembered.document, Some(document(7)));
    assert_eq!(remembered.conversation, Some(7));
    assert_eq!(remembered.settings, Some(dark_settings()));
    let attempt = Turn {
        has_map: false,
        has_replay: false,
        version_of: Some(7),
        instructions: String::new(),
        ..turn(8, TurnState::Stopped)
    };
    let first = Turn {
        has_replay: false,
        instructions: String::new(),
        ..turn(7, TurnState::Done)
    };
    assert_eq!(remembered.turns, [first, attempt]);
    assert_eq!(remembered.conversations.len(), 1);
    let found = opened.store.search("because").await.expect("read");
    assert_eq!(found.len(), 2);
    let found = opened.store.search("\u{e9}").await.expect("read");
    assert_eq!(found[0].turn, None, "the text is searched too");
    let without_turns = Some(TurnMap::from(grid()));
    assert_eq!(opened.store.map(7).await.expect("read"), without_turns);
}

#[tokio::test]
async fn after_a_kill_the_partial_answer_is_restored_as_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let mut running = turn(1, TurnState::Answering);
    running.facts = None;
    running.has_map = false;
    running.has_replay = false;
    let store = &opened.store;
    store.set_document(&document(1)).await.expect("written");
    let begun = store.set_conversation(&conversation(1, 1)).await;
    begun.expect("written");
    let open = Open {
        document: Some(1),
        conversation: Some(1),
    };
    store.set_open(open).await.expect("written");
    store.set_turn(1, &running).await.expect("written");
    let begun = store.set_conversation(&conversation(2, 1)).await;
    begun.expect("written");
    let waiting = turn(2, TurnState::Waiting);
    store.set_turn(2, &waiting).await.expect("written");
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
    assert_eq!(opened.remembered.interrupted, [1, 2]);
    let mut state = AppState::new(opened.remembered, true);
    let Snapshot {
        turns, elsewhere, ..
    } = state.snapshot();
    assert_eq!(turns[0].state, TurnState::Failed);
    assert_eq!(turns[0].error.as_deref(), Some(state::CLOSED_BEFORE_END));
    assert_eq!(turns[0].answer, running.answer);
    // Another one is marked until it is opened.
    let marked = elsewhere.iter().map(|one| (one.conversation, one.state));
    let marked: Vec<_> = marked.collect();
    assert_eq!(marked, [(2, ElsewhereState::Interrupted)]);
    let other = opened.store.conversation(2, None).await;
    let other = other.expect("read").expect("there");
    let error = other.turns[0].error.as_deref();
    assert_eq!(error, Some(state::CLOSED_BEFORE_START));
    state.choose_conversation(2).expect("there");
    assert_eq!(state.conversation_loaded(other), Ok(true));
    assert!(state.snapshot().elsewhere.is_empty());
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
    let mut saves = begin(document(1));
    saves.push(save_turn(1, &long));
    write(folder.path(), saves).await;
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
        write(folder.path(), begun(1)).await;
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
    write(folder.path(), begun(1)).await;
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
    let (writer, _task) = store::start_writing(opened.store, |_| panic!("a write failed"));
    begun(1).into_iter().for_each(|save| writer.save(save));
    assert_eq!(
        writer.written().await.map(1).await.expect("read"),
        Some(map())
    );
}

#[tokio::test]
async fn what_a_locked_file_refuses_is_written_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let (changes, mut changed) = tokio::sync::mpsc::unbounded_channel();
    let (writer, task) = store::start_writing(opened.store, move |failing| {
        changes.send(failing).expect("received");
    });
    let options = SqliteConnectOptions::new().filename(folder.path().join("kept.db"));
    let other = SqliteConnection::connect_with(&options).await;
    let mut other = other.expect("opens");
    let begin = sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await;
    begin.expect("locks");
    begun(1).into_iter().for_each(|save| writer.save(save));
    assert_eq!(changed.recv().await, Some(true));
    let end = sqlx::query("ROLLBACK").execute(&mut other).await;
    end.expect("unlocks");
    assert_eq!(changed.recv().await, Some(false));
    assert_eq!(
        writer.written().await.map(1).await.expect("read"),
        Some(map())
    );
    writer.close().await;
    task.await.expect("ends");
}

#[tokio::test]
async fn a_write_that_can_never_succeed_is_reported_and_holds_nothing_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = store::open(folder.path()).await.expect("opens");
    let changes = Arc::new(Mutex::new(Vec::new()));
    let (writer, task) = store::start_writing(opened.store, {
        let changes = changes.clone();
        move |failing| changes.lock().expect("whole").push(failing)
    });
    // SQLite has no number this large.
    writer.save(save_turn(u64::MAX, &turn(1, TurnState::Done)));
    begun(1).into_iter().for_each(|save| writer.save(save));
    assert_eq!(
        writer.written().await.map(1).await.expect("read"),
        Some(map())
    );
    writer.close().await;
    task.await.expect("ends");
    assert_eq!(*changes.lock().expect("whole"), [true, false]);
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
