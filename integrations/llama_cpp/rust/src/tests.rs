//! What the tap refuses, without a model.

use crate::llama;
use crate::tap::{MoeLayer, Tap};

fn params() -> llama::llama_context_params {
    let mut params = unsafe { llama::llama_context_default_params() };
    (params.n_seq_max, params.kv_unified) = (2, true);
    params
}

fn refused<T>(result: crate::tap::Result<T>, expected: &str) {
    let error = result.err().expect("it is refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_second_tap_on_one_context_is_refused() {
    let mut params = params();
    let _first = Tap::attach(&mut params).unwrap();
    refused(Tap::attach(&mut params), "has a callback already");
}

#[test]
fn a_memory_for_each_of_several_sequences_is_refused() {
    let mut params = params();
    params.kv_unified = false;
    refused(Tap::attach(&mut params), "kv_unified");
    params.n_seq_max = 1;
    Tap::attach(&mut params).unwrap();
}

#[test]
fn nothing_is_captured_before_the_start() {
    let mut tap = Tap::attach(&mut params()).unwrap();
    refused(tap.open(0), "not started");
    refused(tap.start(&[], |config| config), "no layers");
    let layer = MoeLayer { decoder_layer: 0, experts: 8, k: 2 };
    refused(
        tap.start(&[layer, MoeLayer { decoder_layer: 1, k: 1, ..layer }], |config| config),
        "how many experts",
    );
}

#[test]
fn a_sequence_is_captured_once_at_a_time() {
    let mut tap = Tap::attach(&mut params()).unwrap();
    tap.start(&[MoeLayer { decoder_layer: 3, experts: 8, k: 2 }], |config| config.rows(4)).unwrap();
    tap.open(1).unwrap();
    refused(tap.open(1), "already");
    assert_eq!(tap.capturer().unwrap().stats().unwrap().requests_open, 1);
    tap.finish(1).unwrap();
    refused(tap.finish(1), "not being captured");
    tap.open(1).unwrap();
}
