//! ChunkKV's follower layers observe no attention: the engine's measurements per layer, and the rows that each layer
//! keeps.

use kept_engine::policies::{
    ModelShape, Needs, Observation, Policy, PolicyError, PromptShape, Retention, build,
};
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden;

/// A policy that records, per layer, whether the engine passed attention to it.
struct Watched {
    policy: Box<dyn Policy>,
    shown: Vec<bool>,
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn needs(&self, layer: usize) -> Needs {
        self.policy.needs(layer)
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.policy.rows(model, prompt, budget)
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        assert_eq!(observation.layer, self.shown.len(), "layers come in order");
        let anything = observation.window.is_some() || observation.column_sums.is_some();
        self.shown.push(anything || observation.keys.is_some());
        self.policy.select(observation, rows)
    }
}

#[test]
fn followers_are_shown_nothing_and_hold_what_their_leader_holds() {
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
        let mut watched = Watched {
            policy: build("chunkkv", &set).expect("chunkkv"),
            shown: Vec::new(),
        };
        let kept = read_and_step(&model, &mut watched, 30, 512, &prompt, &[]).kept;
        assert_eq!(watched.shown, shown, "reuse={reuse}");
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
