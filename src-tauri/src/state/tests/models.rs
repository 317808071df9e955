//! Models and settings.

use std::collections::BTreeMap;
use std::path::Path;

use kept_worker::protocol::Failure;

use super::*;
use crate::contract::{ModelChoice, Theme};
use crate::messages;

#[test]
fn a_model_file_becomes_the_setting_and_is_kept_once_it_is_open() {
    let mut story = Story::ready();
    story.state.choose_model_file("/models/big.gguf".into());
    assert_eq!(
        story.requests(),
        [Request::OpenModel {
            model: "/models/big.gguf".into(),
            stretch: None
        }]
    );
    assert_eq!(story.state.snapshot().model, None);
    let choice = story.state.snapshot().models[1].clone();
    assert_eq!(choice.label, "big.gguf");
    assert!(!choice.id.contains('/'), "the page learns no path");
    story.hear(model("/models/big.gguf"));
    assert!(
        story
            .look()
            .iter()
            .any(|effect| matches!(effect, Effect::Save(Save::Model(m)) if m.choice == choice))
    );
    assert_eq!(story.state.settings().model, choice.id);
    // The same file again is the same entry.
    story.state.choose_model_file("/models/big.gguf".into());
    assert_eq!(story.state.snapshot().models.len(), 2);
    // Another file of the same name gets a distinct label.
    story.state.choose_model_file("/old/big.gguf".into());
    assert_eq!(story.state.snapshot().models[2].label, "big.gguf (old)");
}

#[test]
fn a_file_that_is_no_model_leaves_the_one_before() {
    let mut story = Story::ready();
    story.state.open_path("/notes.GGUF".into());
    story.look();
    story.hear(failed(Failure::Model, "/notes.GGUF is not a GGUF file"));
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.settings.model, "mini");
    assert_eq!(snapshot.models.len(), 1);
    let effects = story.look();
    let told = effects.iter().any(|effect| {
        matches!(effect, Effect::Page(AppEvent::Notice { r#where: Place::Model, message, .. })
            if message.contains("not a GGUF file"))
    });
    assert!(told);
    assert!(effects.iter().any(|effect| matches!(effect,
        Effect::Worker { request: Request::OpenModel { model, .. }, .. } if model == "mini")));
    story.hear(model("mini"));
    assert!(story.state.snapshot().model.is_some());
}

/// A story in which a model on a USB disk was chosen earlier.
fn chosen_earlier() -> Story {
    let mut settings = default_settings();
    settings.model = "m1".into();
    let entry = ModelEntry {
        choice: ModelChoice {
            id: "m1".into(),
            label: "usb.gguf".into(),
            in_box: false,
            stretch: None,
        },
        path: "/usb.gguf".into(),
        opened: true,
    };
    Story::after(Remembered {
        settings: Some(settings),
        models: vec![entry],
        started_before: true,
        ..Remembered::default()
    })
}

#[test]
fn a_model_of_the_command_line_that_cannot_be_opened_changes_no_choice() {
    let mut story = chosen_earlier();
    story.state.choose_model_file("/missing.gguf".into());
    story.hello();
    story.hear(failed(Failure::Model, "there is no file missing.gguf"));
    assert_eq!(story.state.settings().model, "m1");
    assert!(story.notices()[0].contains("missing.gguf could not be opened"));
    story.hear(model("/usb.gguf"));
    assert!(story.state.snapshot().model.is_some());
}

#[test]
fn a_known_model_that_is_gone_is_an_error_and_stays_the_choice() {
    let mut story = chosen_earlier();
    story.hello();
    story.hear(failed(Failure::Model, "there is no file usb.gguf"));
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.settings.model, "m1");
    assert_eq!(
        snapshot.model_error.as_deref(),
        Some("usb.gguf could not be opened: there is no file usb.gguf.")
    );
    let mut mini = snapshot.settings;
    mini.model = "mini".into();
    story.look();
    story.state.save_settings(mini).expect("accepted");
    assert_eq!(story.state.snapshot().model_error, None);
    assert_eq!(
        story.requests(),
        [Request::OpenModel {
            model: "mini".into(),
            stretch: None
        }]
    );
}

#[test]
fn a_model_the_store_does_not_know_falls_back_to_mini() {
    let mut settings = default_settings();
    settings.model = "m7".into();
    let story = Story::after(Remembered {
        settings: Some(settings),
        ..Remembered::default()
    });
    assert_eq!(story.state.settings().model, "mini");
}

#[test]
fn changing_ones_mind_while_a_model_opens_ends_with_the_last_choice() {
    let mut story = Story::ready();
    story.state.choose_model_file("/slow.gguf".into());
    story.state.choose_model_file("/other.gguf".into());
    assert_eq!(story.requests().len(), 1, "one at a time");
    story.hear(model("/slow.gguf"));
    assert_eq!(story.state.snapshot().model, None);
    assert_eq!(
        story.requests(),
        [Request::OpenModel {
            model: "/other.gguf".into(),
            stretch: None
        }]
    );
    story.hear(model("/other.gguf"));
    assert_eq!(
        story.state.snapshot().model.map(|m| m.name).as_deref(),
        Some("/other.gguf")
    );
}

#[test]
fn settings_are_taken_whole_or_not_at_all() {
    let mut story = Story::ready();
    let good = story.state.settings().clone();
    let with = |change: fn(&mut Settings)| {
        let mut settings = good.clone();
        change(&mut settings);
        settings
    };
    for (bad, named) in [
        (with(|s| s.method = "magic".into()), "'magic'"),
        (with(|s| s.budget = Some("0%".into())), "0%"),
        (with(|s| s.budget = Some("lots".into())), "'lots'"),
        (with(|s| s.model = "/etc/passwd".into()), "'/etc/passwd'"),
        (with(|s| s.max_tokens = 0), "not 0"),
        (with(|s| s.zoom = 10), "10"),
        (
            with(|s| s.instructions = "\u{e9}".repeat(4_001)),
            "4001 characters: shorten them to at most 4000",
        ),
        (with(|s| s.temperature = -0.1), "0 to 2, not -0.1"),
        (with(|s| s.temperature = 2.5), "0 to 2, not 2.5"),
        (with(|s| s.temperature = f64::NAN), "NaN"),
        (with(|s| s.repeat_penalty = Some(0.5)), "0.5"),
        (with(|s| s.repeat_penalty = Some(f64::NAN)), "NaN"),
        (
            with(|s| {
                let kernel = BTreeMap::from([("kernel".into(), "4".into())]);
                s.parameters.insert("snapkv".into(), kernel);
            }),
            "“4” is not possible: kernel takes an odd whole number from 1 to 1023.",
        ),
        (
            with(|s| {
                let unknown = BTreeMap::from([("colour".into(), "4".into())]);
                s.parameters.insert("snapkv".into(), unknown);
            }),
            "'colour'",
        ),
        (with(|s| s.max_tokens = 32_769), "32769"),
    ] {
        let error = story.state.save_settings(bad).expect_err("refused").message;
        assert!(error.contains(named) && !error.contains("--"), "{error}");
        assert_eq!(*story.state.settings(), good);
    }
    story.look();
    let dark = with(|s| {
        s.theme = Theme::Dark;
        s.budget = Some("64MiB".into());
        s.max_tokens = 32_768;
        s.instructions = "\u{e9}".repeat(4_000);
        s.temperature = 0.8;
        s.repeat_penalty = Some(1.1);
    });
    assert_eq!(story.state.save_settings(dark.clone()), Ok(dark));
    let effects = story.look();
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Theme(Theme::Dark)))
    );
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Save(Save::Settings(_))))
    );
    assert!(
        !effects.iter().any(|e| matches!(e, Effect::Worker { .. })),
        "the model is as it was"
    );
}

#[test]
fn the_model_does_not_change_under_a_question() {
    let mut story = Story::ready();
    story.ask("Why?");
    story.state.choose_model_file("/big.gguf".into());
    assert_eq!(story.notices(), [messages::BUSY_MODEL]);
    assert_eq!(story.state.settings().model, "mini");
}

#[test]
fn another_model_is_worth_another_start() {
    let mut story = Story::first_start();
    story.state.worker_gone("It died three times.");
    story.look();
    story.state.choose_model_file("/other.gguf".into());
    assert!(
        story
            .look()
            .iter()
            .any(|e| matches!(e, Effect::RestartWorker))
    );
    story.hello();
    let requests = story.requests();
    assert!(matches!(&requests[0], Request::OpenModel { model, .. } if model == "/other.gguf"));
}

#[test]
fn a_model_that_cannot_be_opened_is_said_once_and_by_its_name() {
    for (message, shown) in [
        (
            "the model file cannot be opened (there is no such file); check the path, or use mini for the built-in model",
            "a b.gguf could not be opened: the model file cannot be opened (there is no such file); check the path, or use mini for the built-in model.",
        ),
        (
            "this is not a GGUF file (it starts with \"%PDF\", not \"GGUF\"); download it again, or choose another file",
            "a b.gguf could not be opened: this is not a GGUF file (it starts with \"%PDF\", not \"GGUF\"); download it again, or choose another file.",
        ),
    ] {
        let mut story = Story::ready();
        story.state.choose_model_file("/models/a b.gguf".into());
        story.look();
        story.hear(failed(Failure::Model, message));
        assert_eq!(story.notices(), [shown]);
    }
}

#[test]
fn parameters_that_are_no_longer_allowed_are_forgotten_at_the_start() {
    let mut settings = default_settings();
    let set = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    settings.parameters.insert("snapkv".into(), set("w", "8"));
    settings
        .parameters
        .insert("h2o".into(), set("recent", "none"));
    settings.parameters.insert("gone".into(), set("w", "8"));
    let story = Story::after(Remembered {
        settings: Some(settings),
        ..Remembered::default()
    });
    let left: Vec<&String> = story.state.settings().parameters.keys().collect();
    assert_eq!(left, ["snapkv"]);
}

#[test]
fn a_first_start_with_a_model_of_this_computer_opens_it() {
    let mut remembered = Remembered::default();
    remembered.prefer(Path::new("/models/a.gguf"), "maker/a:a.gguf");
    remembered.prefer(Path::new("/blobs/sha256-1"), "llama3.2:1b");
    remembered.prefer(Path::new("/models/a.gguf"), "maker/a:a.gguf");
    let mut state = AppState::new(remembered, true);
    let snapshot = state.snapshot();
    let labels: Vec<&str> = snapshot.models.iter().map(|m| m.label.as_str()).collect();
    assert_eq!(labels, ["mini", "a.gguf", "llama3.2:1b"]);
    let chosen = snapshot
        .models
        .iter()
        .find(|m| m.id == snapshot.settings.model);
    assert_eq!(chosen.map(|m| m.label.as_str()), Some("a.gguf"));
}
