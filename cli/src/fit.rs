//! "Will it fit?" as text: the longest document for the free memory of the computer and of a GPU.

use kept_engine::Fit;

use crate::output::{bytes, count};

/// The table that `kept models inspect` prints below the description of a file, for the memory named `of`.
pub fn table(of: &str, fit: &Fit) -> String {
    if fit.missing_bytes() > 0 {
        return format!(
            "{of:<11} {} free now: too little. The weights take {} and reading one page {}; {} are missing. Close other \
             programs, or take a smaller quantisation.\n",
            bytes(fit.free_bytes),
            bytes(fit.weights_bytes),
            bytes(fit.least_bytes),
            bytes(fit.missing_bytes()),
        );
    }
    let mut text = format!(
        "{of:<11} {} free now; with it, one question can read\n",
        bytes(fit.free_bytes)
    );
    for line in &fit.lines {
        let kept = match line.rows {
            Some(rows) => format!("{} rows kept", count(rows)),
            None => "full cache".to_owned(),
        };
        let end = if line.whole_context {
            "the model's whole context"
        } else {
            "then memory ends"
        };
        let pages = match line.pages {
            0 => "less than a page".to_owned(),
            1 => "1 page".to_owned(),
            pages => format!("{} pages", count(pages)),
        };
        text += &format!(
            "            {kept:<17} {:>9} tokens, {pages} ({end}, {})\n",
            count(line.tokens),
            bytes(line.peak_bytes),
        );
    }
    text
}
