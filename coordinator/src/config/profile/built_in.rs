//! The built-in scoring profiles.

use super::{
    ExploreRule, GradeThresholds, GuardedMetric, MetricDirection, ScoreMetric, ScoringProfile,
};
use super::{clamp, eps, id_column, max_rel_drop, ok_values, status_column};

impl ScoringProfile {
    /// Names of the built-in profiles.
    pub const BUILT_IN: &[&str] = &["returns", "sharpe"];

    /// The built-in profile with a name.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "returns" => Some(returns()),
            "sharpe" => Some(sharpe()),
            _ => None,
        }
    }
}

fn built_in(
    name: &str,
    primary: &str,
    metrics: &[(&str, bool, f64)],
    risk: &[&str],
) -> ScoringProfile {
    let direction =
        |higher: bool| if higher { MetricDirection::Higher } else { MetricDirection::Lower };
    let guarded = |column: &str, max_rel_drop| GuardedMetric {
        column: column.to_owned(),
        direction: MetricDirection::Higher,
        max_rel_drop,
    };
    let metric = |(column, higher, weight): &(&str, bool, f64)| ScoreMetric {
        column: (*column).to_owned(),
        direction: direction(*higher),
        weight: *weight,
    };
    ScoringProfile {
        name: name.to_owned(),
        id_column: id_column(),
        status_column: status_column(),
        ok_values: ok_values(),
        primary: guarded(primary, max_rel_drop()),
        metrics: metrics.iter().map(metric).collect(),
        risk: risk.iter().map(|column| guarded(column, 0.10)).collect(),
        clamp: clamp(),
        eps: eps(),
        explore: ExploreRule::default(),
        grades: GradeThresholds::default(),
    }
}

/// Weighs out-of-sample returns per trade most, then growth, ratios and significance.
fn returns() -> ScoringProfile {
    let metrics = [
        ("mean_topN_avg_return_per_trade_pct_oos", true, 3.0),
        ("core_topN_cagr", true, 2.0),
        ("core_topN_sharpe", true, 1.5),
        ("core_topN_sortino", true, 1.5),
        ("core_topN_calmar", true, 1.5),
        ("rel_equity_ratio_end", true, 1.5),
        ("rel_equity_ratio_cagr", true, 1.0),
        ("rel_pct_outperform", true, 1.0),
        ("rel_pct_underperform", false, 1.0),
        ("core_topN_volatility", false, 0.75),
        ("core_topN_max_drawdown", true, 1.0),
        ("core_topN_cvar_05", true, 0.75),
        ("sig_t_stat", true, 0.5),
        ("sig_t_p_value", false, 0.5),
        ("sig_bootstrap_prob_mean_gt0", true, 0.5),
    ];
    let risk = ["core_topN_max_drawdown", "core_topN_cvar_05"];
    built_in("returns", "mean_topN_avg_return_per_trade_pct_oos", &metrics, &risk)
}

/// Weighs the Sharpe ratio most, then returns and the other ratios.
fn sharpe() -> ScoringProfile {
    let metrics = [
        ("core_topN_sharpe", true, 1.5),
        ("mean_topN_avg_return_per_trade_pct_oos", true, 1.0),
        ("mean_topN_avg_return_per_trade_pct", true, 1.0),
        ("core_topN_sortino", true, 1.0),
        ("core_topN_calmar", true, 1.0),
        ("core_topN_max_drawdown", true, 1.0),
    ];
    built_in("sharpe", "core_topN_sharpe", &metrics, &["core_topN_max_drawdown"])
}
