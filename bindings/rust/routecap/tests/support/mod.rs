//! A small engine for tests: it routes by a formula, and knows what every read must give.
#![allow(dead_code)] // each test uses a part of it

use std::sync::atomic::{AtomicBool, Ordering};

use routecap::{
    Capturer, Config, CopyOptions, ErrorKind, Forward, IssueOptions, RequestId, Result, Routing,
    Source, Span, Step, Stream,
};

pub const LAYERS: u32 = 3;
pub const K: u32 = 2;
pub const EXPERTS: u32 = 32;
pub const ROWS: u32 = 64;

/// What the router of a layer chooses for a token: k distinct ids.
pub fn routed(seed: u64, position: u64, layer: u32) -> [i32; K as usize] {
    let first = (seed * 7 + position * 13 + u64::from(layer) * 5) % u64::from(EXPERTS);
    [first as i32, ((first + 1 + position % 3) % u64::from(EXPERTS)) as i32]
}

/// `[rows, layers, k]` of the tokens of a sequence.
pub fn routed_rows(seed: u64, positions: std::ops::Range<u64>) -> Vec<i32> {
    positions
        .flat_map(|position| (0..LAYERS).flat_map(move |layer| routed(seed, position, layer)))
        .collect()
}

pub fn config() -> Config {
    Config::host().layers(LAYERS).k(K).experts(EXPERTS).rows(ROWS)
}

/// An error of this kind, with this in its text.
#[track_caller]
pub fn refused<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.message().contains(text), "{error}");
}

/// Tokens of one sequence in a batch.
#[derive(Clone, Copy)]
pub struct Tokens {
    pub request: RequestId,
    pub seed: u64,
    pub position: u64,
    pub count: u32,
}

/// One forward pass of a batch, issued. Waits for the step before, so that none is lost.
pub fn step(capturer: &Capturer, forward: &mut Forward, batch: &[Tokens]) -> Step {
    let rows: u32 = batch.iter().map(|tokens| tokens.count).sum();
    forward.begin(rows, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        let ids: Vec<i32> = batch
            .iter()
            .flat_map(|tokens| {
                (0..u64::from(tokens.count))
                    .flat_map(move |i| routed(tokens.seed, tokens.position + i, layer))
            })
            .collect();
        forward.record(layer, &Source::new(&ids, rows), Stream::HOST).unwrap();
    }
    forward.snapshot(Stream::HOST).unwrap();
    let mut row = 0;
    let spans: Vec<Span> = batch
        .iter()
        .map(|tokens| {
            row += tokens.count;
            Span::new(tokens.request, tokens.position, row - tokens.count, tokens.count)
        })
        .collect();
    let step =
        forward.issue(&spans, &IssueOptions::new().tag(7), Stream::HOST).unwrap().step().unwrap();
    if step.0 > 1 {
        let _ = capturer.finalize(Step(step.0 - 1)).unwrap();
    }
    step
}

/// A finished sequence of `rows` tokens.
pub fn sequence(capturer: &Capturer, forward: &mut Forward, seed: u64, rows: u32) -> Routing {
    let request = capturer.open().unwrap();
    step(capturer, forward, &[Tokens { request, seed, position: 0, count: rows }]);
    let routing = capturer.finish(request, rows.into()).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    routing
}

/// Checks a complete routing against the formula, by a copy.
pub fn expect_rows(routing: &Routing, seed: u64, positions: std::ops::Range<u64>) {
    let copied = routing.to_vec::<i32>(&CopyOptions::new()).unwrap();
    assert!(copied.completeness.is_complete());
    assert_eq!(routing.view().unwrap().positions(), positions);
    assert_eq!(copied.ids, routed_rows(seed, positions));
}

/// Says that the engine is done, also when it panics: those who watch would wait for ever.
pub struct Done<'a>(pub &'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
