//! The crate on the CUDA backend: memory of the device, streams and graphs.
//!
//! These tests need a driver, a real one or the fake one of tests/fault, and are ignored without
//! being asked for: run the program with `--include-ignored`. It needs nothing beside
//! libroutecap.so.1 and libcuda.so.1.

#[path = "../support/mod.rs"]
mod support;

mod driver;

use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Array, OwnStream};
use routecap::*;
use support::{Done, EXPERTS, K, LAYERS, ROWS, expect_rows, routed};

/// A capturer on the device, and an engine's static buffers: what its forwards record from.
struct Engine {
    ids: Vec<Array<i32>>,
    stream: OwnStream,
    capturer: Capturer,
    forward: Forward,
}

impl Engine {
    fn of(config: Config) -> Engine {
        let ids = (0..LAYERS).map(|_| Array::new(&[-1; (ROWS * K) as usize])).collect();
        let stream = OwnStream::new();
        let (capturer, forward) = config.create().unwrap();
        Engine { ids, stream, capturer, forward }
    }

    fn new() -> Engine {
        Engine::of(config())
    }

    /// What the next forward's routers will choose: the tokens of one sequence from a position on.
    fn feed(&self, seed: u64, position: u64, rows: u32) {
        self.stream.synchronize();
        for (layer, ids) in self.ids.iter().enumerate() {
            let routed = (position..position + u64::from(rows))
                .flat_map(|position| routed(seed, position, layer as u32));
            ids.write(&routed.collect::<Vec<_>>());
        }
    }

    /// Begin, record every layer, snapshot.
    fn run(&mut self, rows: u32) {
        let stream = self.stream.get();
        self.forward.begin(rows, stream).unwrap();
        for (layer, ids) in self.ids.iter().enumerate() {
            let source = Source::new(ids.first((rows * K) as usize), rows);
            self.forward.record(layer as u32, &source, stream).unwrap();
        }
        self.forward.snapshot(stream).unwrap();
    }

    fn issue(&mut self, spans: &[Span]) -> Step {
        let issued = self.forward.issue(spans, &IssueOptions::new(), self.stream.get()).unwrap();
        assert_eq!(issued.filing(), Filing::Whole);
        issued.ticket()
    }

    fn land(&self, step: Step) {
        assert_eq!(
            self.capturer.finalize(step).unwrap(),
            Finalized { landing: Landing::Landed, conflicting: 0 }
        );
    }
}

fn config() -> Config {
    Config::cuda(0).layers(LAYERS).k(K).experts(EXPERTS).rows(ROWS)
}

#[test]
#[ignore = "needs a CUDA driver"]
fn ids_in_memory_of_the_device_come_out_as_they_were() {
    assert!(Backend::Cuda.info().unwrap().available, "{}", Backend::Cuda.info().unwrap().detail);
    let mut engine = Engine::new();
    let request = engine.capturer.open().unwrap();
    for position in (0..200).step_by(50) {
        engine.feed(3, position, 50);
        engine.run(50);
        let step = engine.issue(&[Span::new(request, position, 0, 50)]);
        engine.land(step);
    }
    let routing = engine.capturer.finish(request, ALL).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    drop(engine);
    expect_rows(&routing, 3, 0..200);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn sources_of_every_type_and_layout_are_read() {
    let mut engine = Engine::new();
    let request = engine.capturer.open().unwrap();
    let stream = engine.stream.get();
    let rows = 6u32;
    let wide: Vec<i64> = (0..u64::from(rows))
        .flat_map(|position| [routed(1, position, 0).map(i64::from), [99, 99]].concat())
        .collect();
    let wide = Array::new(&wide);
    let packed: Vec<IdWeight> = (0..u64::from(rows))
        .flat_map(|position| routed(1, position, 1))
        .map(|id| IdWeight((id as u32) << 16 | 0x3f80))
        .collect();
    let packed = Array::new(&packed);
    // The last layer by halves, rows in the reverse order, from physical ids.
    let physical: Vec<i16> = (0..u64::from(rows))
        .rev()
        .flat_map(|position| routed(1, position, 2))
        .map(|id| (id + 100) as i16)
        .collect();
    let physical = Array::new(&physical);
    let table =
        Array::new(&(0..200).map(|id| if id < 100 { -1 } else { id - 100 }).collect::<Vec<i32>>());
    let index = Array::new(&(0..rows as i32).rev().collect::<Vec<_>>());
    let live = Array::new(&[rows as i32]);

    engine.forward.begin(rows, stream).unwrap();
    engine.forward.record(0, &Source::new(wide.any(), rows).row_stride(4), stream).unwrap();
    engine.forward.record(1, &Source::new(packed.any(), rows), stream).unwrap();
    let source = Source::new(physical.any(), rows)
        .table(table.slice())
        .row_index(index.slice())
        .live_rows(live.slice());
    engine.forward.record(2, &source, stream).unwrap();
    engine.forward.snapshot(stream).unwrap();
    let step = engine.issue(&[Span::new(request, 0, 0, rows)]);
    engine.land(step);
    expect_rows(
        &engine.capturer.extract(request, .., Extract::Share).unwrap(),
        1,
        0..u64::from(rows),
    );
}

#[test]
#[ignore = "needs a CUDA driver"]
fn a_graph_is_captured_once_and_replayed() {
    let mut engine = Engine::new();
    let request = engine.capturer.open().unwrap();
    let stream = engine.stream.get();
    // The capture, which survives calls that cannot be part of it.
    let graph = {
        let Engine { ids, stream: own, forward, .. } = &mut engine;
        own.capture(|| {
            forward.begin(8, stream).unwrap();
            let layers: Vec<LayerSource<'_>> = ids
                .iter()
                .enumerate()
                .map(|(layer, ids)| LayerSource::new(layer as u32, ids.first(8 * K as usize)))
                .collect();
            forward.record_layers(&Source::common(8), &layers, stream).unwrap();
            assert_eq!(
                forward.issue(&[], &IssueOptions::new(), stream).unwrap_err().kind(),
                ErrorKind::Capturing
            );
            assert_eq!(forward.discard(stream).unwrap_err().kind(), ErrorKind::Capturing);
            forward.snapshot(stream).unwrap();
        })
    };
    engine.forward.discard(stream).unwrap();
    for position in (0..80).step_by(8) {
        engine.feed(9, position, 8);
        graph.launch(&engine.stream);
        let step = engine.issue(&[Span::new(request, position, 0, 8)]);
        engine.land(step);
    }
    // A replay that is not issued leaves nothing.
    engine.feed(10, 0, 8);
    graph.launch(&engine.stream);
    engine.forward.discard(stream).unwrap();
    let routing = engine.capturer.finish(request, ALL).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    expect_rows(&routing, 9, 0..80);
    // The graph outlives the capturer.
    let Engine { ids: _ids, stream, capturer, forward } = engine;
    drop((capturer, forward));
    graph.launch(&stream);
    stream.synchronize();
}

#[test]
#[ignore = "needs a CUDA driver"]
fn drafts_at_positions_that_only_the_device_knows_are_settled() {
    let mut engine = Engine::new();
    let request = engine.capturer.open().unwrap();
    engine.feed(5, 0, 6);
    engine.run(6);
    // The device says where the rows are: 0, 1 and the drafts 2..6.
    let positions = Array::new(&[0i64, 1, 2, 3, 4, 5]);
    let spans = [
        Span::new(request, 0, 0, 2),
        Span::new(request, 1, 2, 4).device_positions(8).speculative(),
    ];
    let options = IssueOptions::new().tag(11).positions(positions.any());
    let issued = engine.forward.issue(&spans, &options, engine.stream.get()).unwrap();
    let mut accepts = [AcceptItem::new(request, issued.ticket(), Kept::Indices(&[0, 1, 2]))];
    assert!(engine.capturer.accept_batch(&mut accepts).unwrap());
    let routing = engine.capturer.finish(request, 5).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    expect_rows(&routing, 5, 0..5);
    assert!(routing.view().unwrap().iter().all(|row| row.tag() == 11));
    let stats = engine.capturer.stats().unwrap();
    assert_eq!((stats.rows_delivered, stats.rows_rejected + stats.rows_late), (5, 1));
}

#[test]
#[ignore = "needs a CUDA driver"]
fn memory_of_the_engine_is_adopted_as_the_sink() {
    // [layers, rows, k] as a fused kernel writes it; here a copy stands for the kernel.
    let sink = Array::new(&vec![0i16; (LAYERS * ROWS * K) as usize]);
    let mut engine = Engine::of(config().external_sink(true));
    let described = Sink {
        ids: sink.address().cast(),
        dtype: DType::I16,
        rows: ROWS,
        k: K,
        row_stride: 0,
        layer_stride: 0,
        ids_bytes: u64::from(LAYERS * ROWS * K) * 2,
        weights_dtype: None,
        weights: std::ptr::null_mut(),
        weights_bytes: 0,
    };
    // SAFETY: the array outlives the engine, and nothing else uses it.
    unsafe { engine.forward.bind(0, LAYERS, &described) }.unwrap();
    let second = engine.forward.sink(1).unwrap().unwrap();
    assert_eq!(second.ids, sink.address().wrapping_add((ROWS * K) as usize).cast());
    assert_eq!(engine.forward.sink_mut::<i16>(1).unwrap_err().kind(), ErrorKind::Argument);

    let stream = engine.stream.get();
    let request = engine.capturer.open().unwrap();
    engine.forward.begin(4, stream).unwrap();
    engine.stream.synchronize();
    let mut written = sink.read();
    for layer in 0..LAYERS {
        for row in 0..4 {
            for (column, id) in routed(2, row, layer).into_iter().enumerate() {
                written[((layer * ROWS + row as u32) * K) as usize + column] = id as i16;
            }
        }
    }
    sink.write(&written);
    let mut probes = [LayerProbe::default(); LAYERS as usize];
    assert!(!engine.forward.probe(4, &mut probes, stream).unwrap(), "{probes:?}");
    assert!(probes.iter().all(|probe| probe.is_clean() && probe.rows_written == 4));
    engine.forward.snapshot(stream).unwrap();
    let step = engine.issue(&[Span::new(request, 0, 0, 4)]);
    engine.land(step);
    expect_rows(&engine.capturer.extract(request, .., Extract::Take).unwrap(), 2, 0..4);
    drop(engine);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn experts_are_chosen_from_logits_as_on_the_host() {
    let recomputed = [Provenance::Recomputed; LAYERS as usize];
    let rows = 16u32;
    let logits: Vec<f32> =
        (0..rows * EXPERTS).map(|i| (i.wrapping_mul(2654435761) >> 8) as f32 / 1e6 - 8.0).collect();
    let bias: Vec<f32> = (0..EXPERTS).map(|e| e as f32 / 64.0).collect();
    let router = || Router::new(Method::DeepSeekV3).unwrap().groups(4, 2).scale(2.5);

    let (host, mut on_host) = support::config().layer_provenance(&recomputed).create().unwrap();
    let mut host_weights = vec![0f32; (rows * K) as usize];
    on_host.begin(rows, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        let mut logits = Logits::new(&logits, rows).weights(&mut host_weights, 0);
        on_host.route(layer, &router().bias(&bias), &mut logits, Stream::HOST).unwrap();
    }
    on_host.snapshot(Stream::HOST).unwrap();
    let of_host = host.open().unwrap();
    on_host
        .issue(&[Span::new(of_host, 0, 0, rows)], &IssueOptions::new(), Stream::HOST)
        .unwrap()
        .step()
        .unwrap();
    let expected = host.finish(of_host, ALL).unwrap();
    assert!(expected.wait().unwrap().is_complete());

    let (device_logits, device_bias) = (Array::new(&logits), Array::new(&bias));
    let mut weights = Array::new(&vec![0f32; (rows * K) as usize]);
    let mut engine = Engine::of(config().layer_provenance(&recomputed));
    let stream = engine.stream.get();
    engine.forward.begin(rows, stream).unwrap();
    for layer in 0..LAYERS {
        let mut logits = Logits::new(device_logits.any(), rows).weights(weights.slice_mut(), 0);
        engine
            .forward
            .route(layer, &router().bias(device_bias.any()), &mut logits, stream)
            .unwrap();
    }
    engine.forward.snapshot(stream).unwrap();
    let request = engine.capturer.open().unwrap();
    let step = engine.issue(&[Span::new(request, 0, 0, rows)]);
    engine.land(step);
    let routing = engine.capturer.finish(request, ALL).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    // Equal routings give equal bytes.
    assert_eq!(routing.serialize().unwrap(), expected.serialize().unwrap());
    assert_eq!(routing.coverage().unwrap().cells_recomputed, u64::from(rows * LAYERS));
    for (device, host) in weights.read().iter().zip(&host_weights) {
        assert!((device - host).abs() < 1e-5, "{device} {host}");
    }
}

#[test]
#[ignore = "needs a CUDA driver"]
fn what_a_rank_executed_is_read_from_its_dispatch() {
    let mut engine = Engine::new();
    let stream = engine.stream.get();
    // Two ranks of four tokens. Rank 1 received its own token 2 with its first column, whose local
    // expert is 3; the second column is lost.
    let local = EXPERTS as i32 / 2;
    let metadata = Array::new(&[6, 0, 0, 0]);
    let (ids, chosen) = (Array::new(&[3, -1]), Array::new(&[-1, -1, -1, -1, 3 + local, 1]));
    let mut executed = Array::new(&[0i32; 2 * 4 * K as usize]);
    let counted = Array::new(&[0i64; 9]);
    // SAFETY: as many numbers of 64 bits as there are counts, which outlive the calls' work.
    let counts = unsafe { SliceMut::device(counted.address().cast::<ReceivedCounts>(), 1) };
    let mut received = Received::new(2, 1, EXPERTS, K, 4, executed.slice_mut(), counts)
        .metadata(metadata.slice(), 1)
        .ids(ids.any())
        .topk_ids(chosen.any(), 3);
    engine.forward.read_received(&mut received, stream).unwrap();
    engine.forward.compare_received(&mut received, stream).unwrap();
    engine.stream.synchronize();
    // tokens, columns, equal, replaced, swapped, lost, tokens_lost, extra, ignored
    assert_eq!(counted.read(), [3, 2, 1, 0, 0, 1, 0, 0, 0]);
}

#[test]
#[ignore = "needs a CUDA driver"]
fn slices_of_the_host_are_refused() {
    let mut engine = Engine::new();
    let stream = engine.stream.get();
    engine.forward.begin(1, stream).unwrap();
    let error = engine.forward.record(0, &Source::new(&[1i32, 2], 1), stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("the CUDA backend takes memory of the device"), "{error}");
    let options = IssueOptions::new().positions(&[0i32]);
    assert_eq!(
        engine.forward.issue(&[], &options, stream).unwrap_err().kind(),
        ErrorKind::Argument
    );
}

#[test]
#[ignore = "needs a CUDA driver"]
fn other_threads_read_while_the_device_computes() {
    let mut engine = Engine::new();
    let request = engine.capturer.open().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let finished = Done(&done);
        for _ in 0..2 {
            let (capturer, done) = (engine.capturer.clone(), &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    match capturer.extract(request, Rows::landed(0), Extract::Share) {
                        Ok(routing) => expect_rows(&routing, 6, 0..routing.view().unwrap().rows()),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotReady),
                    }
                }
            });
        }
        for position in 0..60 {
            engine.feed(6, position, 1);
            engine.run(1);
            let step = engine.issue(&[Span::new(request, position, 0, 1)]);
            if step.0 > 1 {
                engine.land(Step(step.0 - 1));
            }
        }
        drop(finished);
    });
    let routing = engine.capturer.finish(request, 60).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    expect_rows(&routing, 6, 0..60);
}
