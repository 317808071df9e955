//! Validation of a method's selection.

use kept_policies::{ClassTable, Entry, Pos, Retention};

/// Checks that the selected positions ascend, lie inside the prompt and do not exceed the budget over all
/// heads.
pub(super) fn check(retention: &Retention, tokens: usize, rows: usize, table: Option<ClassTable>) {
    let heads: Vec<&[Pos]> = match retention {
        Retention::Everything => return,
        Retention::Keep(heads) => heads.iter().map(Vec::as_slice).collect(),
        Retention::Merge(heads) => {
            let capacity = table
                .expect("a method that merges asked for a table")
                .entries;
            for head in heads {
                let known = |e: &Entry| (e.class as usize) < head.centres.len();
                assert!(head.entries.iter().all(known), "every class has a centre");
                assert!(head.entries.len() <= capacity, "a table is not exceeded");
                ascending(head.entries.iter().map(|e| e.pos), tokens);
            }
            heads.iter().map(|head| head.centres.as_slice()).collect()
        }
    };
    for kept in &heads {
        ascending(kept.iter().copied(), tokens);
    }
    let kept: usize = heads.iter().map(|kept| kept.len()).sum();
    assert!(
        kept <= rows.min(tokens) * heads.len(),
        "a budget is not exceeded"
    );
}

fn ascending(positions: impl Iterator<Item = Pos> + Clone, tokens: usize) {
    assert!(
        positions.clone().is_sorted_by(|a, b| a < b),
        "kept positions ascend without repeats"
    );
    assert!(
        positions.last().is_some_and(|p| (p.0 as usize) < tokens),
        "kept positions lie in the prompt"
    );
}
