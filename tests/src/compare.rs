//! Distance between two rows of logits, and the rule for tolerating a different token choice.

/// Largest absolute difference, relative to the largest logit of the reference.
pub fn apart(row: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(row.len(), reference.len(), "rows of one vocabulary");
    assert!(
        row.iter().all(|x| x.is_finite()),
        "every logit is a finite number"
    );
    let largest = reference.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    let difference = row
        .iter()
        .zip(reference)
        .fold(0.0f32, |a, (x, y)| a.max((x - y).abs()));
    difference / largest
}

/// The most likely token outside `never`; ties go to the lower id.
pub fn likeliest(row: &[f32], never: &[u32]) -> u32 {
    let mut best = None;
    for (id, &logit) in row.iter().enumerate() {
        if !never.contains(&(id as u32)) && best.is_none_or(|(_, b)| logit > b) {
            best = Some((id as u32, logit));
        }
    }
    best.expect("a vocabulary").0
}

/// Margin of the most likely token over the second.
pub fn lead(row: &[f32]) -> f32 {
    let mut two = [f32::NEG_INFINITY; 2];
    for &logit in row {
        if logit > two[0] {
            two = [logit, two[0]];
        } else if logit > two[1] {
            two[1] = logit;
        }
    }
    two[0] - two[1]
}

/// Asserts that `row` equals `reference` within `bound` (relative to the reference's largest logit), and that both
/// choose the same token wherever the reference's margin exceeds twice that bound.
pub fn assert_same(row: &[f32], reference: &[f32], bound: f32, what: &str) {
    let apart = apart(row, reference);
    assert!(
        apart <= bound,
        "{what}: logits are {apart:.1e} apart, more than {bound:.0e}"
    );
    let largest = reference.iter().fold(0.0f32, |a, x| a.max(x.abs()));
    if lead(reference) > 2.0 * bound * largest {
        assert_eq!(
            likeliest(row, &[]),
            likeliest(reference, &[]),
            "{what}: the most likely token"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_relative_to_the_largest_logit() {
        assert_eq!(apart(&[1.0, -4.0], &[1.5, -5.0]), 0.2);
        assert_eq!(apart(&[2.0, 3.0], &[2.0, 3.0]), 0.0);
    }

    #[test]
    fn likeliest_skips_ids_and_prefers_the_lower() {
        assert_eq!(likeliest(&[1.0, 3.0, 3.0], &[]), 1);
        assert_eq!(likeliest(&[1.0, 3.0, 2.0], &[1]), 2);
        assert_eq!(lead(&[1.0, 3.0, 2.5]), 0.5);
    }

    #[test]
    #[should_panic(expected = "apart")]
    fn a_wrong_logit_fails() {
        assert_same(&[1.0, 2.1], &[1.0, 2.0], 1e-3, "a row");
    }
}
