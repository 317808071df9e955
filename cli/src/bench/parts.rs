//! The parts of a decode step, beside the memory bandwidth.

use kept_engine::kernels::bandwidth;
use kept_engine::{Engine, PartTime};

use crate::output;

/// Memory bandwidth of the engine's device in bytes per second: copies on a GPU, reading on a CPU.
pub fn limit(engine: &Engine) -> anyhow::Result<f64> {
    let gpu = engine.gpu_rates()?;
    Ok(gpu.map_or_else(|| bandwidth().read, |rates| 1e9 * rates.copy_gbs))
}

/// Parts of a decode step beside the memory bandwidth `limit`, in bytes per second.
pub fn print(parts: &[PartTime], limit: f64) -> anyhow::Result<()> {
    let mut text = format!(
        "\n{:<28} {:>9} {:>10} {:>9} {:>8}\n",
        "part of a token", "us each", "us", "GB/s", "of limit"
    );
    for part in parts {
        let speed = part.bytes as f64 / part.seconds;
        let rate = match part.bytes {
            0 => String::new(),
            _ => format!("{:>9.1} {:>6.0} %", speed / 1e9, 100.0 * speed / limit),
        };
        let line = format!(
            "{:<28} {:>9.1} {:>10.1} {rate}",
            part.part,
            1e6 * part.seconds / part.times as f64,
            1e6 * part.seconds
        );
        text += line.trim_end();
        text += "\n";
    }
    let seconds: f64 = parts.iter().map(|part| part.seconds).sum();
    text += &format!("{:<28} {:>9} {:>10.1}\n", "together", "", 1e6 * seconds);
    text += &format!("limit: {:.1} GB/s of memory bandwidth\n", limit / 1e9);
    output::print_text(&text)
}
