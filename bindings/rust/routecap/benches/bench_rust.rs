//! What calls cost from Rust, on the host backend: one JSON object a line, {"name": ..., "ns":
//! median}, to be held against the same calls from C.

use std::hint::black_box;
use std::time::Instant;

use routecap::{
    AcceptItem, Capturer, Config, CopyOptions, Extract, FinishItem, Forward, IssueOptions, Kept,
    Landing, Policy, RequestId, Source, Span, Step, Stream,
};

const LAYERS: u32 = 58;
const K: u32 = 8;
const EXPERTS: u32 = 256;
const ROWS: u32 = 1024;
const REQUESTS: usize = 256;
const WARM_UP: usize = 50;
const REPETITIONS: usize = 300;
const MANY: usize = 100;

/// Calls `once` again and again, which says how long what it measures took, and prints the median.
fn repeat(name: &str, mut once: impl FnMut() -> f64) {
    let mut ns: Vec<f64> = (0..WARM_UP + REPETITIONS).map(|_| once()).skip(WARM_UP).collect();
    ns.sort_by(f64::total_cmp);
    println!("{{\"name\": \"{name}\", \"ns\": {:.1}}}", ns[ns.len() / 2]);
}

fn time<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let start = Instant::now();
    let result = black_box(work());
    (start.elapsed().as_nanos() as f64, result)
}

/// The same for calls too short for the clock: one of `MANY`.
fn repeat_many<R>(name: &str, mut work: impl FnMut() -> R) {
    repeat(name, || time(|| (0..MANY).for_each(|_| drop(black_box(work())))).0 / MANY as f64);
}

/// The ids that every step records: k distinct ones in each cell.
fn ids(rows: u32) -> Vec<i32> {
    (0..rows)
        .flat_map(|row| (0..K).map(move |column| ((row * 13 + column * 5) % EXPERTS) as i32))
        .collect()
}

/// A forward pass up to its snapshot.
fn forward_pass(forward: &mut Forward, ids: &[i32], rows: u32) {
    forward.begin(rows, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        forward.record(layer, &Source::new(ids, rows), Stream::HOST).unwrap();
    }
    forward.snapshot(Stream::HOST).unwrap();
}

fn wait(capturer: &Capturer, step: Step) {
    assert_eq!(capturer.finalize(step).unwrap().landing, Landing::Landed);
}

/// Requests, each with a span of one row in the array that is used again, and their forward pass.
fn prepare(
    capturer: &Capturer,
    forward: &mut Forward,
    ids: &[i32],
    requests: &mut [RequestId],
    spans: &mut Vec<Span>,
    speculative: bool,
) {
    capturer.open_batch(requests, Policy::Keep).unwrap();
    spans.clear();
    spans.extend(requests.iter().enumerate().map(|(row, request)| {
        let span = Span::new(*request, 0, row as u32, 1);
        if speculative { span.speculative() } else { span }
    }));
    forward_pass(forward, ids, requests.len() as u32);
}

fn main() {
    let (capturer, mut forward) =
        Config::host().layers(LAYERS).k(K).experts(EXPERTS).rows(ROWS).create().unwrap();
    let (all, few) = (ids(ROWS), ids(REQUESTS as u32));
    let options = IssueOptions::new();
    let mut requests = vec![RequestId::NONE; REQUESTS];
    let mut spans: Vec<Span> = Vec::with_capacity(REQUESTS);

    // One request of 1024 rows that have landed.
    let request = capturer.open().unwrap();
    forward_pass(&mut forward, &all, ROWS);
    let landed = forward
        .issue(&[Span::new(request, 0, 0, ROWS)], &options, Stream::HOST)
        .unwrap()
        .step()
        .unwrap();
    wait(&capturer, landed);

    repeat_many("poll", || capturer.poll(landed).unwrap());
    repeat_many("open_close", || capturer.close(capturer.open().unwrap()).unwrap());
    repeat("open_close_256", || {
        let open_and_close = || {
            capturer.open_batch(&mut requests, Policy::Keep).unwrap();
            capturer.close_batch(&requests).unwrap()
        };
        time(open_and_close).0
    });

    repeat("issue_256", || {
        prepare(&capturer, &mut forward, &few, &mut requests, &mut spans, false);
        let (ns, step) =
            time(|| forward.issue(&spans, &options, Stream::HOST).unwrap().step().unwrap());
        wait(&capturer, step);
        assert!(capturer.close_batch(&requests).unwrap());
        ns
    });
    let mut accepts: Vec<AcceptItem<'_>> = Vec::with_capacity(REQUESTS);
    let mut ends: Vec<FinishItem> = Vec::with_capacity(REQUESTS);
    repeat("issue_accept_finish_256", || {
        prepare(&capturer, &mut forward, &few, &mut requests, &mut spans, true);
        let (ns, step) = time(|| {
            let step = forward.issue(&spans, &options, Stream::HOST).unwrap().step().unwrap();
            accepts.clear();
            accepts.extend(
                requests.iter().map(|request| AcceptItem::new(*request, step, Kept::First(1))),
            );
            assert!(capturer.accept_batch(&mut accepts).unwrap());
            ends.extend(requests.iter().map(|request| FinishItem::new(*request, 1)));
            assert!(capturer.finish_batch(&mut ends).unwrap());
            step
        });
        wait(&capturer, step);
        for mut end in ends.drain(..) {
            assert!(end.take().unwrap().wait().unwrap().is_complete());
        }
        ns
    });

    repeat_many("extract_share", || capturer.extract(request, .., Extract::Share).unwrap());
    let routing = capturer.extract(request, .., Extract::Share).unwrap();
    repeat_many("view", || {
        routing.view().unwrap().iter().next().and_then(|row| row.ids()).unwrap()
    });
    let mut copied = vec![0i32; (ROWS * LAYERS * K) as usize];
    repeat("copy_to", || {
        time(|| routing.copy_to(&mut copied, None, &CopyOptions::new()).unwrap()).0
    });
    assert_eq!(copied[..K as usize], all[..K as usize]);
    repeat("serialize", || time(|| routing.serialize().unwrap()).0);
}
