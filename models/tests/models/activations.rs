//! Activation functions whose numbers are in the file: xIELU (Apertus).

use crate::architectures::{config, open, opened, tiny};
use crate::support::row_wise;
use kept_models::testing::{GgufWriter, MetaValue};
use kept_models::{ModelError, OpenOptions};

const KEYS: [&str; 4] = ["alpha_n", "alpha_p", "beta", "eps"];

#[test]
fn numbers_of_xielu_are_those_of_a_layer_or_of_all() {
    let by_layer = config("apertus", |_| {});
    assert_eq!(by_layer.xielu.len(), 6);
    assert_eq!(
        (by_layer.xielu[0].alpha_n, by_layer.xielu[5].alpha_n),
        (0.2, 0.7)
    );
    assert!(by_layer.xielu.iter().all(|of| of.beta == 0.5));
    assert!(config("arcee", |_| {}).xielu.is_empty());
    let logits = |change: &dyn Fn(&mut GgufWriter)| {
        let mut writer = tiny("apertus").writer();
        change(&mut writer);
        row_wise(&opened(&writer), &[3, 50, 7, 90])
    };
    let right = logits(&|_| {});
    for key in KEYS {
        let key = format!("xielu.{key}");
        let set = |numbers: MetaValue| {
            logits(&|w| {
                w.set(&key, numbers.clone());
            })
        };
        let number = MetaValue::Number(-0.3);
        assert_eq!(set(number.clone()), set(MetaValue::Numbers(vec![-0.3; 6])));
        assert_ne!(set(number), right, "{key}");
    }
}

#[test]
fn other_numbers_of_xielu_are_refused() {
    for key in KEYS {
        let key = format!("xielu.{key}");
        let mut writer = tiny("apertus").writer();
        writer.remove(&key);
        let error = open(&writer, &OpenOptions::default()).unwrap_err();
        assert_eq!(error, ModelError::MissingKey { key: key.clone() });
        for value in [
            MetaValue::Numbers(vec![0.1; 5]),
            MetaValue::Numbers(vec![0.1; 7]),
            MetaValue::Numbers(vec![f32::NAN; 6]),
            MetaValue::Number(f32::INFINITY),
            MetaValue::Text("0.1".to_owned()),
        ] {
            let mut writer = tiny("apertus").writer();
            writer.set(&key, value);
            let error = open(&writer, &OpenOptions::default()).unwrap_err();
            assert!(error.to_string().contains(&key), "{error}");
        }
    }
}
