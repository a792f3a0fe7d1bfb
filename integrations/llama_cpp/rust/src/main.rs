//! llama.cpp as a crate, and the routing of a mixture-of-experts model in it, through the crate
//! `routecap`.
//!
//! ```text
//! llama-cpp-capture MODEL.gguf [--prune] [--save FOLDER] PROMPT...
//! ```
//!
//! Tokens are bytes, as in the models of this project. All prompts are prefilled together, in
//! batches that the engine splits into micro-batches, and then continued together, one token each.
//! What is routecap's here is in tap.rs; the rest is an engine's loop.
//!
//! With --prune only the last token of each prompt wants logits, as in serving: the engine then
//! computes only those rows of the last layer, and the others are reported as missing. --save
//! writes each request's routing to FOLDER/request-0.routecap and so on, for
//! `routecap show FOLDER`.

#[path = "../../../../examples/report.rs"]
mod report;
mod tap;
#[cfg(test)]
mod tests;

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;

use llama_cpp_sys_2 as llama;
use tap::{Result, Tap};

const CONTEXT: u32 = 1024;
const BATCH: usize = 64;
const MICRO_BATCH: u32 = 16;
const GENERATE: usize = 8;

struct Sequence {
    prompt: Vec<u8>,
    generated: Vec<u8>,
    rows: usize, // tokens that were input
}

fn main() -> Result<()> {
    let (mut prune, mut save, mut texts) = (false, None, Vec::new());
    let mut arguments = std::env::args();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--prune" => prune = true,
            "--save" => save = arguments.next().map(PathBuf::from),
            _ => texts.push(argument),
        }
    }
    let [_, path, prompts @ ..] = &texts[..] else { return Err("the model is missing".into()) };
    let new_sequence = |prompt: &String| Sequence {
        prompt: prompt.clone().into_bytes(),
        generated: Vec::new(),
        rows: 0,
    };
    let mut sequences: Vec<Sequence> = prompts.iter().map(new_sequence).collect();
    if sequences.is_empty()
        || sequences.iter().any(|s| {
            s.prompt.is_empty() || s.prompt.len() + GENERATE > CONTEXT as usize / sequences.len()
        })
    {
        return Err("prompts are missing, empty or too long".into());
    }

    let (mut tap, mut engine) = Engine::load(path, sequences.len())?;
    let layers = unsafe { tap.discover(engine.context) }?;
    println!("{} MoE layers, {} of {} experts each", layers.len(), layers[0].k, layers[0].experts);
    tap.start(&layers, |config| config)?;
    for sequence in 0..sequences.len() {
        tap.open(sequence as i32)?;
    }

    while sequences.iter().any(|s| s.generated.len() < GENERATE) {
        let prefilling = sequences.iter().any(|s| s.rows < s.prompt.len());
        let mut logits_of = Vec::new();
        engine.batch.n_tokens = 0;
        for (number, s) in sequences.iter_mut().enumerate() {
            let ready = if prefilling {
                &s.prompt[s.rows.min(s.prompt.len())..]
            } else {
                &s.generated[s.generated.len() - 1..]
            };
            let room = BATCH - engine.batch.n_tokens as usize;
            for token in &ready[..ready.len().min(room)] {
                let last = s.rows + 1 >= s.prompt.len();
                let row = engine.add(*token, s.rows, number, last || !prune);
                if last {
                    logits_of.push((number, row));
                }
                s.rows += 1;
            }
        }
        unsafe { tap.decode(engine.context, engine.batch) }?;
        for (number, row) in logits_of {
            sequences[number].generated.push(engine.best_token(row));
        }
    }

    for (number, s) in sequences.iter().enumerate() {
        let routing = tap.finish(number as i32)?; // the last token generated was never input
        let (prompt, generated) =
            (String::from_utf8_lossy(&s.prompt), String::from_utf8_lossy(&s.generated));
        report::print(&format!("request {number}, {prompt:?} -> {generated:?}"), &routing)?;
        if let Some(folder) = &save {
            report::save(folder, number, &s.prompt, &s.generated, &routing)?;
        }
    }
    Ok(())
}

/// Of llama.cpp what this program needs.
struct Engine {
    model: *mut llama::llama_model,
    context: *mut llama::llama_context,
    batch: llama::llama_batch,
    vocabulary: usize,
}

impl Engine {
    fn load(path: &str, sequences: usize) -> Result<(Tap, Engine)> {
        unsafe {
            llama::llama_log_set(Some(only_errors), std::ptr::null_mut());
            llama::llama_backend_init();
            let mut params = llama::llama_model_default_params();
            params.n_gpu_layers = 0;
            let model = llama::llama_model_load_from_file(CString::new(path)?.as_ptr(), params);
            if model.is_null() {
                return Err(format!("{path} does not load").into());
            }
            let mut params = llama::llama_context_default_params();
            params.n_ctx = CONTEXT;
            params.n_batch = BATCH as u32;
            params.n_ubatch = MICRO_BATCH;
            params.n_seq_max = sequences as u32;
            params.kv_unified = true;
            (params.n_threads, params.n_threads_batch) = (1, 1);
            // Comparable with other engines; the defaults choose other experts in some cells.
            (params.type_k, params.type_v) = (llama::GGML_TYPE_F32, llama::GGML_TYPE_F32);
            params.flash_attn_type = llama::LLAMA_FLASH_ATTN_TYPE_DISABLED;
            let tap = Tap::attach(&mut params)?;
            let context = llama::llama_init_from_model(model, params);
            if context.is_null() {
                return Err("no context".into());
            }
            let batch = llama::llama_batch_init(BATCH as i32, 0, 1);
            let vocabulary =
                llama::llama_vocab_n_tokens(llama::llama_model_get_vocab(model)) as usize;
            Ok((tap, Engine { model, context, batch, vocabulary }))
        }
    }

    /// Appends a token to the batch, which has room for it. Returns its row.
    fn add(&mut self, token: u8, position: usize, sequence: usize, logits: bool) -> usize {
        let row = self.batch.n_tokens as usize;
        unsafe {
            *self.batch.token.add(row) = token.into();
            *self.batch.pos.add(row) = position as i32;
            *self.batch.n_seq_id.add(row) = 1;
            **self.batch.seq_id.add(row) = sequence as i32;
            *self.batch.logits.add(row) = logits.into();
        }
        self.batch.n_tokens += 1;
        row
    }

    fn best_token(&self, row: usize) -> u8 {
        let logits = unsafe {
            std::slice::from_raw_parts(
                llama::llama_get_logits_ith(self.context, row as i32),
                self.vocabulary,
            )
        };
        (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or_default() as u8
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe {
            llama::llama_batch_free(self.batch);
            llama::llama_free(self.context);
            llama::llama_model_free(self.model);
        }
    }
}

unsafe extern "C" fn only_errors(
    level: llama::ggml_log_level,
    text: *const c_char,
    _: *mut c_void,
) {
    if level == llama::GGML_LOG_LEVEL_ERROR {
        eprint!("{}", unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy());
    }
}
