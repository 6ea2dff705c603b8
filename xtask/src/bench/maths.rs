//! Percentiles, medians and ratios.
//!
//! Responsible for statistics of plain numbers; the callers know the units.

/// The smallest value in `sorted` such that at least `percent` of the values are not greater (nearest rank);
/// `None` for an empty slice. `percent` is 1 to 100.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// The median: the middle value, or the mean of the two middle values; `None` for an empty slice.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

/// `ours / theirs`; `None` unless both are above zero.
pub(crate) fn ratio(ours: f64, theirs: f64) -> Option<f64> {
    (ours > 0.0 && theirs > 0.0).then(|| ours / theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), Some(50));
        assert_eq!(percentile(&hundred, 99), Some(99));
        assert_eq!(percentile(&hundred, 100), Some(100));
        assert_eq!(percentile(&[7], 1), Some(7));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[3, 9], 50), Some(3));
        assert_eq!(percentile(&[3, 9], 51), Some(9));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_median_does_not_depend_on_the_order() {
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[8.5]), Some(8.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_ratio_to_zero_is_none() {
        assert_eq!(ratio(150.0, 100.0), Some(1.5));
        assert_eq!(ratio(150.0, 0.0), None);
        assert_eq!(ratio(0.0, 100.0), None);
    }
}
