//! Many threads at once: one drives the forward path, the others open, read, fork and end requests.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use routecap::*;
use support::{Done, ROWS, Tokens, config, expect_rows, step};

/// Reads what it likes of a request that somebody else may end.
fn read(capturer: &Capturer, request: RequestId, seed: u64) {
    match capturer.extract(request, Rows::landed(0), Extract::Share) {
        Ok(routing) => {
            let rows = routing.view().unwrap().rows();
            expect_rows_if_complete(&routing, seed, rows);
        }
        Err(error) => assert!(
            [ErrorKind::UnknownRequest, ErrorKind::NotReady].contains(&error.kind()),
            "{error}"
        ),
    }
    match capturer.coverage(request, Rows::landed(0)) {
        Ok(coverage) => assert_eq!(
            coverage.rows_complete + coverage.rows_partial + coverage.rows_empty,
            coverage.rows
        ),
        Err(error) => assert!(
            [ErrorKind::UnknownRequest, ErrorKind::NotReady].contains(&error.kind()),
            "{error}"
        ),
    }
}

fn expect_rows_if_complete(routing: &Routing, seed: u64, rows: u64) {
    if routing.poll().unwrap() == Some(Completeness::Complete) {
        expect_rows(routing, seed, 0..rows);
    }
}

#[test]
fn threads_read_and_end_requests_while_another_runs_forwards() {
    const SEQUENCES: u64 = 400;
    let (capturer, mut forward) = config().slots(8).create().unwrap();
    let (ended, ends) = mpsc::channel::<(RequestId, u64, u64)>();
    let done = AtomicBool::new(false);
    let live = std::sync::Mutex::new(Vec::<(RequestId, u64)>::new());

    std::thread::scope(|scope| {
        let finished = Done(&done);
        for _ in 0..3 {
            let (capturer, done, live) = (capturer.clone(), &done, &live);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let some: Vec<_> = live.lock().unwrap().iter().copied().take(4).collect();
                    for (request, seed) in some {
                        read(&capturer, request, seed);
                        if let Ok(child) = capturer.fork(request, 2) {
                            capturer.close(child).unwrap();
                        }
                    }
                    let stats = capturer.stats().unwrap();
                    assert!(stats.steps_landed <= stats.steps_issued + 8);
                    let message =
                        capturer.close(RequestId(u64::MAX)).unwrap_err().message().to_string();
                    assert!(!message.is_empty());
                }
            });
        }
        let finisher = {
            let capturer = capturer.clone();
            scope.spawn(move || {
                for (request, seed, rows) in ends {
                    let routing = capturer.finish(request, rows).unwrap();
                    assert!(routing.wait().unwrap().is_complete());
                    expect_rows(&routing, seed, 0..rows);
                }
            })
        };
        // The engine: eight sequences at a time, a few rows of each in every step.
        let mut batch: Vec<Tokens> = Vec::new();
        let mut next = 0;
        while next < SEQUENCES || !batch.is_empty() {
            while batch.len() < 8 && next < SEQUENCES {
                let request = capturer.open().unwrap();
                live.lock().unwrap().push((request, next));
                batch.push(Tokens {
                    request,
                    seed: next,
                    position: 0,
                    count: (ROWS / 8).min(1 + next as u32 % 8),
                });
                next += 1;
            }
            step(&capturer, &mut forward, &batch);
            for tokens in &mut batch {
                tokens.position += u64::from(tokens.count);
            }
            batch.retain(|tokens| {
                let done = tokens.position >= 20;
                if done {
                    live.lock().unwrap().retain(|(request, _)| *request != tokens.request);
                    ended.send((tokens.request, tokens.seed, tokens.position)).unwrap();
                }
                !done
            });
        }
        drop(ended);
        finisher.join().unwrap();
        drop(finished);
    });

    let stats = capturer.stats().unwrap();
    assert_eq!(stats.requests_open, 0);
    assert_eq!(stats.steps_lost, 0);
    assert_eq!(stats.bytes_in_use, 0);
}

#[test]
fn the_forward_path_moves_between_threads() {
    let (capturer, forward) = config().create().unwrap();
    let request = capturer.open().unwrap();
    let mut forward = Some(forward);
    for position in 0..10 {
        let (capturer, mut moved) = (capturer.clone(), forward.take().unwrap());
        let thread = std::thread::spawn(move || {
            step(&capturer, &mut moved, &[Tokens { request, seed: 3, position, count: 1 }]);
            moved
        });
        forward = Some(thread.join().unwrap());
    }
    let routing = capturer.finish(request, 10).unwrap();
    let waiting = routing.clone();
    assert!(std::thread::spawn(move || waiting.wait().unwrap()).join().unwrap().is_complete());
    expect_rows(&routing, 3, 0..10);
}

#[test]
fn one_routing_is_read_by_many_threads() {
    let (capturer, mut forward) = config().create().unwrap();
    let routing = support::sequence(&capturer, &mut forward, 11, 60);
    let view = routing.view().unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let routing = &routing;
            scope.spawn(move || {
                for i in 0..200 {
                    let first = (n * 7 + i) % 50;
                    expect_rows(
                        &routing.clone().slice(first..first + 10).unwrap(),
                        11,
                        first..first + 10,
                    );
                }
                assert_eq!(view.iter().count(), 60);
            });
        }
    });
}
