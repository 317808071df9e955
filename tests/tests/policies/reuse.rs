//! ChunkKV's follower layers observe no attention: the engine's measurements per layer, and the rows that each layer
//! keeps.

use std::sync::{Arc, Mutex};

use kept_engine::policies::{
    Method, Observation, PolicyError, RowPlan, RowRequest, Select, Selection, build,
};
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden;

/// Per layer, whether the engine passed attention, keys or values of it.
type Shown = Arc<Mutex<Vec<bool>>>;

/// A method that records what the engine passes to it.
struct Watched {
    method: Arc<dyn Method>,
    shown: Shown,
}

impl Method for Watched {
    fn name(&self) -> &'static str {
        self.method.name()
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        self.method.plan(request)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(WatchedSelect {
            state: self.method.start(plan),
            shown: self.shown.clone(),
        })
    }
}

struct WatchedSelect {
    state: Box<dyn Select>,
    shown: Shown,
}

impl Select for WatchedSelect {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let mut shown = self.shown.lock().expect("one thread selects");
        assert_eq!(observation.layer, shown.len(), "layers come in order");
        let anything =
            observation.observation_window.is_some() || observation.column_sums.is_some();
        shown.push(anything || observation.keys.is_some());
        self.state.select(plan, observation)
    }
}

#[test]
fn followers_are_shown_nothing_and_hold_their_leaders_rows() {
    let model = open(&golden::model("group2-llama3-tied"));
    let prompt: Vec<u32> = (0..90).map(|i| 3 + i * 41 % 300).collect();
    let mut alone = Vec::new();
    for (reuse, shown) in [
        ("1", [true, true, true]),
        ("2", [true, false, true]),
        ("3", [true, false, false]),
        ("100", [true, false, false]),
    ] {
        let set = [("reuse".to_owned(), reuse.to_owned())];
        let watched = Watched {
            method: build("chunkkv", &set).expect("chunkkv"),
            shown: Shown::default(),
        };
        let kept = read_and_step(&model, &watched, 30, 512, &prompt, &[]).kept;
        let seen = watched.shown.lock().expect("it has been read").clone();
        assert_eq!(seen, shown, "reuse={reuse}");
        for layer in 1..kept.len() {
            if !shown[layer] {
                assert_eq!(kept[layer], kept[layer - 1], "reuse={reuse}, layer {layer}");
            }
        }
        if reuse == "1" {
            assert!(
                kept[0] != kept[1] && kept[1] != kept[2],
                "layers differ when each is asked"
            );
            alone = kept;
        } else {
            for layer in (0..kept.len()).filter(|&layer| shown[layer]) {
                assert_eq!(
                    kept[layer], alone[layer],
                    "reuse={reuse}: a leader is asked as before"
                );
            }
        }
    }
}
