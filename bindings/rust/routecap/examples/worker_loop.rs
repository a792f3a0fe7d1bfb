//! The worker loop of a GPU engine: asynchronous scheduling, chunked prefill, drafts, preemption.
//!
//! The engine is imitated: a "model" whose routers choose experts by a formula, a "device" that
//! samples, and a scheduler that plans step t+1 before it knows what step t sampled. What is
//! routecap's here is what an engine writes. The program runs on the host backend, so there is no
//! stream and device memory is host memory; with CUDA, begin, the routers and snapshot are what the
//! engine captures into its graph.
//!
//! Every row that comes out is compared with the formula.

use routecap::{
    ALL, AcceptItem, Capturer, Completeness, Config, CopyOptions, Forward, IssueOptions, Kept,
    RequestId, Result, Routing, Span, Step, Stream,
};

const LAYERS: u32 = 6;
const K: u32 = 4;
const EXPERTS: u32 = 64;
const MAX_TOKENS: u32 = 48;
const CHUNK: u32 = 24;
const DRAFTS: u32 = 2;
const SLOTS: u32 = 4;

// ---- The engine

struct Sequence {
    /// Stands for its tokens.
    seed: u32,
    /// Tokens.
    prompt: u32,
    /// Of the whole sequence: the last token is never input, so one fewer than its tokens.
    rows: u32,
    /// The scheduler will preempt it once.
    preempt: bool,
    /// Tokens that are certain and have to be computed before decoding goes on.
    to_fill: u32,
    filled: u32,
    /// Position after the last step whose outcome the host knows.
    known: u32,
    /// The step in flight has drafts whose outcome the host does not know.
    deciding: bool,
    /// Position after the last step, known to the device only.
    next_on_gpu: u32,
    request: RequestId,
    /// Once it is finished.
    routing: Option<Routing>,
}

impl Sequence {
    fn new(capturer: &Capturer, seed: u32, prompt: u32, rows: u32, preempt: bool) -> Result<Self> {
        let request = capturer.open()?;
        Ok(Sequence {
            seed,
            prompt,
            rows,
            preempt,
            to_fill: prompt,
            filled: 0,
            known: 0,
            deciding: false,
            next_on_gpu: 0,
            request,
            routing: None,
        })
    }

    /// How many of the drafts after the token at `position` turn out to be right.
    fn drafts_kept(&self, position: u32) -> u32 {
        (self.seed + position) % (DRAFTS + 1)
    }
}

/// What the router of `layer` chooses for the token at `position`: k distinct ids.
fn routed(seed: u32, position: u32, layer: u32, column: u32) -> i16 {
    ((seed * 7 + position * 13 + layer * 29 + column * 5) % EXPERTS) as i16
}

/// A token of a step: whose it is, and where in its sequence.
#[derive(Clone, Copy)]
struct Token {
    seed: u32,
    position: u32,
}

/// One forward pass on the device. Fused kernels write their ids straight into the sink, so capture
/// adds no kernel to a layer.
fn run_forward(forward: &mut Forward, tokens: &[Token]) -> Result<()> {
    forward.begin(tokens.len() as u32, Stream::HOST)?;
    for layer in 0..LAYERS {
        let sink = forward.sink_mut::<i16>(layer)?; // the library's sink has 16-bit ids unless configured otherwise, and rows of k
        for (row, token) in sink.chunks_exact_mut(K as usize).zip(tokens) {
            for (column, id) in row.iter_mut().enumerate() {
                *id = routed(token.seed, token.position, layer, column as u32);
            }
        }
    }
    forward.snapshot(Stream::HOST)
}

// ---- The loop

fn main() -> Result<()> {
    let (capturer, mut forward) = Config::host()
        .layers(LAYERS)
        .k(K)
        .experts(EXPERTS)
        .rows(MAX_TOKENS)
        .slots(SLOTS)
        .create()?;
    let mut sequences = [
        Sequence::new(&capturer, 1, 61, 69, false)?,
        Sequence::new(&capturer, 2, 5, 34, true)?,
        Sequence::new(&capturer, 3, 17, 17, false)?,
        Sequence::new(&capturer, 4, 100, 119, false)?,
        Sequence::new(&capturer, 5, 33, 44, false)?,
    ];
    let count = sequences.len();

    let mut running = count;
    let mut step = Step::default();
    let mut iteration = 0;
    while running > 0 {
        // Schedule a step without knowing what the previous one sampled.
        let mut tokens: Vec<Token> = Vec::new();
        let mut spans: Vec<Span> = Vec::new();
        let mut decoding: Vec<usize> = Vec::new();
        let mut decided: Vec<usize> = Vec::new();
        for n in 0..count {
            let index = (n + iteration) % count; // the order in the batch changes from step to step
            let s = &mut sequences[index];
            if s.routing.is_some() {
                continue;
            }
            if s.deciding {
                decided.push(index);
            }
            let row = tokens.len() as u32;
            if s.filled < s.to_fill {
                // A chunk of the prompt: its positions are known.
                let rows = (s.to_fill - s.filled).min(CHUNK).min(MAX_TOKENS - row);
                if rows == 0 {
                    continue;
                }
                spans.push(Span::new(s.request, s.filled.into(), row, rows));
                tokens.extend(
                    (s.filled..s.filled + rows).map(|position| Token { seed: s.seed, position }),
                );
                s.filled += rows;
                s.known = s.filled;
                s.next_on_gpu = s.filled;
            } else if row + 1 + DRAFTS <= MAX_TOKENS {
                // The last token and drafts: where, only the device knows if drafts are being
                // decided.
                let first = u64::from(s.known) + u64::from(s.deciding);
                let last = u64::from(s.known) + if s.deciding { u64::from(1 + DRAFTS) } else { 0 };
                spans.push(Span::new(s.request, first, row, 1).device_positions(last + 1));
                let drafts = Span::new(s.request, first + 1, row + 1, DRAFTS);
                spans.push(drafts.device_positions(last + 1 + u64::from(DRAFTS)).speculative());
                tokens.extend(
                    (0..1 + DRAFTS).map(|r| Token { seed: s.seed, position: s.next_on_gpu + r }),
                );
                decoding.push(index);
            }
        }

        run_forward(&mut forward, &tokens)?;

        // Throttle as an engine does by itself: steps beyond these would be lost. This
        // imitation computes nothing and runs away otherwise.
        let previous = step;
        if previous.0 >= u64::from(SLOTS) {
            let _ = capturer.finalize(Step(previous.0 - u64::from(SLOTS - 1)))?;
        }
        let positions: Vec<i32> = tokens.iter().map(|token| token.position as i32).collect(); // on the device
        let options = IssueOptions::new().tag(42 /* the weights' version */).positions(&positions);
        // A lost step is an error here; an engine would count it and go on with its ticket.
        step = forward.issue(&spans, &options, Stream::HOST)?.step()?;

        // Meanwhile the outcome of the previous step's drafts has arrived.
        let mut accepts = Vec::with_capacity(decided.len());
        for index in decided {
            let s = &mut sequences[index];
            let kept = s.drafts_kept(s.known);
            accepts.push(AcceptItem::new(s.request, previous, Kept::First(kept.into())));
            s.known += 1 + kept;
            s.deciding = false;
        }
        assert!(capturer.accept_batch(&mut accepts)?);

        for index in decoding {
            // The device samples, and goes on from there.
            let s = &mut sequences[index];
            s.next_on_gpu += 1 + s.drafts_kept(s.next_on_gpu);
            s.deciding = true;
        }
        for s in sequences.iter_mut().filter(|s| s.routing.is_none()) {
            if s.known >= s.rows {
                // Done. The step in flight ran ahead for nothing: what it adds beyond the
                // sequence's rows is cut, what was drafted is dropped.
                s.routing = Some(capturer.finish(s.request, s.rows.into())?);
                running -= 1;
            } else if s.preempt && s.known >= s.prompt + 6 {
                // Preempted: its cache is gone and all its tokens are computed again, but they were
                // sampled under the rows captured first, which stay. (To drop them:
                // capturer.truncate(s.request, 0).) The drafts in flight will not be wanted.
                s.preempt = false;
                (s.to_fill, s.filled) = (s.known, 0);
                if s.deciding {
                    capturer.accept(s.request, step, Kept::First(0))?;
                }
                s.deciding = false;
            }
        }
        iteration += 1;
    }

    // Elsewhere, on any thread, at any time later: the routings.
    let mut wrong = 0;
    for (i, s) in sequences.iter().enumerate() {
        let routing = s.routing.as_ref().expect("it is finished");
        let completeness = routing.wait()?;
        let ids = routing.to_vec::<i16>(&CopyOptions::new())?.ids; // missing cells would be -1
        let expected = (0..s.rows).flat_map(|position| {
            (0..LAYERS).flat_map(move |layer| {
                (0..K).map(move |column| routed(s.seed, position, layer, column))
            })
        });
        wrong += ids.iter().zip(expected).filter(|(is, expected)| *is != expected).count();
        wrong += usize::from(
            ids.len() as u32 != s.rows * LAYERS * K || completeness != Completeness::Complete,
        );

        let (prompt, generated) = routing.split(s.prompt.into(), ALL)?;
        let (prompt, generated) = (prompt.view()?, generated.view()?);
        println!(
            "sequence {i}: {} rows of the prompt and {} generated, {} layers, {} experts per token: {completeness:?}",
            prompt.rows(),
            generated.rows(),
            prompt.layers(),
            prompt.k()
        );
    }

    let stats = capturer.stats()?;
    println!(
        "{} steps, {} lost; {} rows delivered, of which {} again after a preemption; {} drafts rejected; {wrong} differences",
        stats.steps_issued,
        stats.steps_lost,
        stats.rows_delivered,
        stats.rows_overlapped,
        stats.rows_rejected
    );
    assert_eq!(wrong, 0);
    Ok(())
}
