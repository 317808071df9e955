//! Every method selects what `oracle.py` selects, on five hundred synthetic cases each: extreme budgets, ties, long
//! answers.
//!
//! `golden/selections_many.py` generates the cases and describes their distribution.

use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::selecting::{Measured, evicted, kept};

fn hold(method: &str) {
    let cases = golden::packed(&format!("selections/{method}.json.gz"));
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 500, "{method}: {} cases", cases.len());
    let (mut ties, mut untouched, mut groups) = (0, 0, [0; 8]);
    for value in cases {
        let case = Case::from_json(value);
        assert_eq!(case.method, method);
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(found, case.kept, "{measured:?}: {}", case.describe());
        }
        for head in &case.kept {
            assert!(head.is_sorted_by(|a, b| a < b), "{}", case.describe());
            assert!(!head.is_empty() && head[head.len() - 1] < case.n as u32);
        }
        if let Some(answered) = &case.answered {
            assert!(answered.steps >= 60);
            assert_eq!(
                evicted(&case, answered),
                answered.evicted,
                "{}",
                case.describe()
            );
        }
        ties += usize::from(!value["repeat"].is_null() || value["bits"] == 3);
        untouched += usize::from(case.budget >= case.n);
        groups[case.q_heads / case.kv_heads] += 1;
    }
    assert!(ties >= 100, "{ties} cases with ties");
    assert!(untouched >= 50, "{untouched} budgets that hold everything");
    assert!([1, 2, 4, 7].into_iter().all(|group| groups[group] >= 50));
}

macro_rules! methods {
    ($($method:ident)*) => {
        $(
            #[test]
            fn $method() {
                hold(stringify!($method));
            }
        )*
    };
}

methods!(streaming_llm h2o tova snapkv pyramidkv chunkkv hbw_kv treekv);

/// The cases of methods that evict during decode include long answers.
#[test]
fn answers_are_among_the_cases() {
    for method in ["streaming_llm", "h2o", "tova", "treekv"] {
        let cases = golden::packed(&format!("selections/{method}.json.gz"));
        let answers = cases.as_array().expect("cases").iter();
        let answers = answers.filter(|case| case["steps"].is_u64()).count();
        assert!(answers >= 100, "{method}: {answers} answers");
    }
}
