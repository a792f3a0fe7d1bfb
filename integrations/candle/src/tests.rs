//! What the tap refuses and leaves missing, and that every model with the line is seen.

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{deepseek2, qwen2_moe};
use routecap::{ALL, Completeness, Span};
use serde_json::json;

use crate::tap::Tap;

fn refused<T>(result: crate::tap::Result<T>, expected: &str) {
    let error = result.err().expect("it is refused").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_model_without_moe_layers_is_refused() {
    refused(Tap::new(&[], 2, 8, 4), "no MoE layers");
}

#[test]
fn a_second_tap_on_one_thread_is_refused_until_the_first_is_gone() {
    let first = Tap::new(&[0], 2, 8, 4).unwrap();
    refused(Tap::new(&[0], 2, 8, 4), "observer already");
    drop(first);
    Tap::new(&[0], 2, 8, 4).unwrap();
}

#[test]
fn a_forward_pass_whose_layers_do_not_fire_is_not_issued() {
    let mut tap = Tap::new(&[0, 1], 2, 8, 4).unwrap();
    let request = tap.capturer().open().unwrap();
    refused(tap.forward(3, &[Span::new(request, 0, 0, 3)], || Ok(())), "0 of 2 layers");
    assert_eq!(
        tap.capturer().finish(request, 3).unwrap().wait().unwrap(),
        Completeness::NotCaptured
    );
}

#[test]
fn a_model_that_fails_is_not_captured() {
    let mut tap = Tap::new(&[0], 2, 8, 4).unwrap();
    let failed =
        tap.forward(3, &[], || -> candle_core::Result<()> { candle_core::bail!("out of order") });
    refused(failed, "out of order");
    assert_eq!(tap.capturer().stats().unwrap().steps_issued, 0);
}

/// Runs a model with weights of 0, whose routers choose any experts, over three tokens.
fn every_layer_fires(
    layers: &[i32],
    run: impl FnOnce(VarBuilder, &Tensor) -> candle_core::Result<Tensor>,
) {
    let mut tap = Tap::new(layers, 2, 8, 4).unwrap();
    let request = tap.capturer().open().unwrap();
    let tokens = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu).unwrap();
    tap.forward(3, &[Span::new(request, 0, 0, 3)], || {
        run(VarBuilder::zeros(DType::F32, &Device::Cpu), &tokens)
    })
    .unwrap();
    assert_eq!(
        tap.capturer().finish(request, ALL).unwrap().wait().unwrap(),
        Completeness::Complete
    );
}

#[test]
fn qwen2_moe_is_seen() {
    let config = json!({
        "vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 16, "sliding_window": 16, "max_window_layers": 2, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false, "hidden_act": "silu", "decoder_sparse_step": 1,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts_per_tok": 2, "num_experts": 8, "norm_topk_prob": true
    });
    every_layer_fires(&[0, 1], |weights, tokens| {
        qwen2_moe::Model::new(&serde_json::from_value(config).expect("a configuration"), weights)?
            .forward(tokens, 0)
    });
}

#[test]
fn deepseek2_is_seen() {
    let config = json!({
        "vocab_size": 16, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "n_shared_experts": 1, "n_routed_experts": 8, "routed_scaling_factor": 1.0, "topk_method": "greedy",
        "num_experts_per_tok": 2, "moe_layer_freq": 1, "first_k_dense_replace": 1, "norm_topk_prob": false, "scoring_func": "softmax",
        "hidden_act": "silu", "max_position_embeddings": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
        "rope_scaling": null, "attention_bias": false, "q_lora_rank": null, "qk_rope_head_dim": 8, "kv_lora_rank": 8, "v_head_dim": 16,
        "qk_nope_head_dim": 8, "n_group": 1, "topk_group": 1
    });
    every_layer_fires(&[1], |weights, tokens| {
        deepseek2::DeepSeekV2::new(
            &serde_json::from_value(config).expect("a configuration"),
            weights,
        )?
        .forward(tokens, 0)
    });
}
