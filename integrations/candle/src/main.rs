//! Candle, and the routing of a mixture-of-experts model in it, through the crate `routecap`: what
//! one line in an engine is enough for.
//!
//! ```text
//! candle-capture FOLDER [--save FOLDER] PROMPT...
//! ```
//!
//! The folder holds a Qwen3-MoE: config.json and model.safetensors. Tokens are bytes, as in the
//! models of this project. Prompts of one length that follow one another are a batch; each batch is
//! prefilled in chunks and then continued. What is routecap's here is in tap.rs, and the line in
//! the engine in patch.sh; the rest is what any program does with candle.
//!
//! --save writes each request's routing to FOLDER/request-0.routecap and so on, for
//! `routecap show FOLDER`.

#[path = "../../../examples/report.rs"]
mod report;
mod tap;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen3_moe;
use routecap::{ALL, RequestId, Span};
use tap::{Result, Tap};

const CHUNK: usize = 16;
const MAX_ROWS: usize = 256;
const GENERATE: usize = 8;

fn main() -> Result<()> {
    let (mut save, mut texts) = (None, Vec::new());
    let mut arguments = std::env::args();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--save" => save = arguments.next().map(PathBuf::from),
            _ => texts.push(argument),
        }
    }
    let [_, folder, prompts @ ..] = &texts[..] else { return Err("the model is missing".into()) };
    if prompts.is_empty() || prompts.iter().any(String::is_empty) {
        return Err("prompts are missing or empty".into());
    }

    let folder = Path::new(folder);
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    if config.get("max_window_layers").is_none() {
        config["max_window_layers"] = config["num_hidden_layers"].clone(); // candle wants to be told, even where no layer has a window
    }
    let config: qwen3_moe::Config = serde_json::from_value(config)?;
    let layers: Vec<i32> = (0..config.num_hidden_layers)
        .filter(|layer| config.num_experts > 0 && (layer + 1) % config.decoder_sparse_step == 0)
        .map(|layer| layer as i32)
        .collect();
    let mut tap = Tap::new(
        &layers,
        config.num_experts_per_tok as u32,
        config.num_experts as u32,
        MAX_ROWS as u32,
    )?;
    println!(
        "{} MoE layers, {} of {} experts each",
        layers.len(),
        config.num_experts_per_tok,
        config.num_experts
    );
    // SAFETY: nobody changes the file meanwhile.
    let weights = unsafe {
        VarBuilder::from_mmaped_safetensors(
            &[folder.join("model.safetensors")],
            DType::F32,
            &Device::Cpu,
        )?
    };
    let mut model = qwen3_moe::ModelForCausalLM::new(&config, weights)?;

    let mut number = 0;
    for batch in prompts.chunk_by(|a, b| a.len() == b.len()) {
        let requests =
            batch.iter().map(|_| tap.capturer().open()).collect::<routecap::Result<Vec<_>>>()?;
        let generated = generate(&mut model, &mut tap, batch, &requests)?;
        for ((request, prompt), generated) in requests.into_iter().zip(batch).zip(generated) {
            let routing = tap.capturer().finish(request, ALL)?; // the last token generated was never input
            report::print(
                &format!(
                    "request {number}, {prompt:?} -> {:?}",
                    String::from_utf8_lossy(&generated)
                ),
                &routing,
            )?;
            if let Some(folder) = &save {
                report::save(folder, number, prompt.as_bytes(), &generated, &routing)?;
            }
            number += 1;
        }
    }
    Ok(())
}

/// Continues prompts of one length, each by the likeliest tokens.
fn generate(
    model: &mut qwen3_moe::ModelForCausalLM,
    tap: &mut Tap,
    prompts: &[String],
    requests: &[RequestId],
) -> Result<Vec<Vec<u8>>> {
    let chunk = CHUNK.min(MAX_ROWS / prompts.len());
    let mut tokens: Vec<Vec<u8>> =
        prompts.iter().map(|prompt| prompt.clone().into_bytes()).collect();
    let length = prompts[0].len();
    let mut position = 0;
    model.clear_kv_cache();
    while tokens[0].len() < length + GENERATE {
        let end = tokens[0].len().min(position + chunk);
        let input: Vec<u32> = tokens
            .iter()
            .flat_map(|tokens| tokens[position..end].iter().map(|token| u32::from(*token)))
            .collect();
        let input = Tensor::from_vec(input, (prompts.len(), end - position), &Device::Cpu)?;
        // The rows of the forward pass are those of the first sequence, then those of the second,
        // and so on.
        let count = (end - position) as u32;
        let spans: Vec<Span> = (0..)
            .zip(requests)
            .map(|(row, request)| Span::new(*request, position as u64, row * count, count))
            .collect();
        let logits =
            tap.forward(count * requests.len() as u32, &spans, || model.forward(&input, position))?;
        position = end;
        if position >= length {
            let next = logits.squeeze(1)?.argmax(D::Minus1)?.to_vec1::<u32>()?;
            tokens.iter_mut().zip(next).for_each(|(tokens, token)| tokens.push(token as u8));
        }
    }
    Ok(tokens.into_iter().map(|tokens| tokens[length..].to_vec()).collect())
}
