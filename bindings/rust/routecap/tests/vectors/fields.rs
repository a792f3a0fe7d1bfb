//! The methods of routing, the switches of a configuration and the fields of the counts.
// Generated from the headers: run python3 dev/generate. Do not edit.

use routecap::{Config, Method, sys};

pub const METHODS: [Method; 11] = [
    Method::Softmax,
    Method::SoftmaxRenormalize,
    Method::TopkSoftmax,
    Method::Topk,
    Method::TopkSigmoid,
    Method::Sigmoid,
    Method::SigmoidRenormalize,
    Method::DeepSeekV2,
    Method::DeepSeekV3,
    Method::DeepSeekV4,
    Method::Ernie,
];

pub type Switch = fn(Config, bool) -> Config;

pub const SWITCHES: [(u32, Switch); 6] = [
    (sys::ROUTECAP_CONFIG_COMPARE, Config::compare),
    (sys::ROUTECAP_CONFIG_EXTERNAL_SINK, Config::external_sink),
    (sys::ROUTECAP_CONFIG_MANUAL_PROGRESS, Config::manual_progress),
    (sys::ROUTECAP_CONFIG_MAY_LOSE, Config::may_lose),
    (sys::ROUTECAP_CONFIG_CHECKED, Config::checked),
    (sys::ROUTECAP_CONFIG_LOAD, Config::load),
];

macro_rules! stats_object {
    ($stats:expr) => {
        object!($stats;
            silent_layers, steps_issued, steps_landed, steps_lost, rows_issued, rows_in_flight,
            rows_provisional, rows_delivered, rows_missing, rows_lost, rows_late, rows_rejected,
            rows_unplaced, rows_refused, rows_skipped, rows_shared, rows_overlapped,
            rows_mismatched, rows_dropped, cells_conflicting, cells_unwritten, cells_out_of_range,
            cells_duplicate, requests_open, steps_in_flight, bytes_in_use, bytes_peak, bytes_budget
        )
    };
}
pub(crate) use stats_object;
