//! Distance between two next-token distributions: KL divergence, and agreement of the most likely token.

/// `KL(full || method)` in nats: the expected extra surprise when tokens of the full cache's distribution are
/// predicted with the method's. 0 for equal logits; negative values, possible by rounding only, become 0.
///
/// ```text
/// p = softmax(full), q = softmax(method)      KL = sum over tokens of p * (ln p - ln q)
/// ```
pub fn kl_divergence(full: &[f32], method: &[f32]) -> f64 {
    assert_eq!(full.len(), method.len(), "logits of one vocabulary");
    let (p, q) = (log_normaliser(full), log_normaliser(method));
    let terms = full.iter().zip(method).map(|(&f, &m)| {
        let ln_p = f64::from(f) - p;
        ln_p.exp() * (ln_p - (f64::from(m) - q))
    });
    terms.sum::<f64>().max(0.0)
}

/// Whether both distributions give the same token at temperature 0. Ties go to the lower id, as in the sampler.
pub fn same_top(full: &[f32], method: &[f32]) -> bool {
    kept_kernels::argmax(full) == kept_kernels::argmax(method)
}

/// `ln sum exp` of the logits.
fn log_normaliser(logits: &[f32]) -> f64 {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let largest = f64::from(largest);
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_of_equal_and_shifted_logits_is_zero() {
        let logits = [1.5f32, -2.0, 0.25, 30.0];
        assert_eq!(kl_divergence(&logits, &logits), 0.0);
        let shifted: Vec<f32> = logits.iter().map(|x| x + 8.0).collect();
        assert!(kl_divergence(&logits, &shifted) < 1e-12);
    }

    /// numpy: p = softmax([1, 2, 3]), q = softmax([3, 1, 0.5]); (p * (log(p) - log(q))).sum()
    #[test]
    fn kl_matches_numpy() {
        let kl = kl_divergence(&[1.0, 2.0, 3.0], &[3.0, 1.0, 0.5]);
        assert!((kl - 1.5168978466263277).abs() < 1e-9, "{kl}");
        let other_way = kl_divergence(&[3.0, 1.0, 0.5], &[1.0, 2.0, 3.0]);
        assert!((other_way - 1.5739608885714615).abs() < 1e-9, "{other_way}");
    }

    #[test]
    fn same_top_breaks_ties_to_the_lower_token() {
        assert!(same_top(&[0.0, 5.0, 5.0], &[1.0, 2.0, 1.0]));
        assert!(!same_top(&[0.0, 5.0, 5.0], &[1.0, 2.0, 3.0]));
    }
}
