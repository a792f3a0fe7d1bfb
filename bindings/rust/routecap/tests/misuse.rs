//! Memory of the wrong length, type or place, and calls in the wrong order: errors that say what is
//! wrong, and nothing happens.

mod support;

use std::ffi::c_void;

use routecap::*;
use support::{EXPERTS, K, LAYERS, ROWS, refused};

fn begun() -> (Capturer, Forward) {
    let (capturer, mut forward) = support::config().create().unwrap();
    forward.begin(8, Stream::HOST).unwrap();
    (capturer, forward)
}

#[test]
fn a_source_that_is_too_short_is_refused_before_it_is_read() {
    let (_capturer, mut forward) = begun();
    let ids = [0i32, 1, 2, 3, 4, 5, 6];
    refused(
        forward.record(0, &Source::new(&ids, 4), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "ids has 7 elements, not 8",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).row_stride(6), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "needs 8",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).column_stride(5), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "needs 8",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).start(4), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "ids has 3 elements, not 4",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).columns(4), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "not 8: 2 rows x 4 columns",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).row_stride(i64::MAX), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "ids has 7",
    );
    refused(
        forward.record(0, &Source::new(&ids, 2).row_stride(-2), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "before its first element",
    );
    refused(
        forward.record(0, &Source::new(&ids[..6], 3).row_index(&[0, 1]), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "row_index has 2",
    );
    refused(
        forward.record(0, &Source::new(&ids[..6], 3).live_rows(&[]), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "live_rows has 0",
    );
    // What is long enough is taken, strides that go back included.
    forward.record(0, &Source::new(&ids, 2).start(2).row_stride(-2), Stream::HOST).unwrap();
    forward
        .record(1, &Source::new(&ids[..6], 3).row_index(&[2, 1, 0]).live_rows(&2), Stream::HOST)
        .unwrap();
}

#[test]
fn ids_of_a_type_that_is_no_id_are_refused() {
    let (_capturer, mut forward) = begun();
    refused(
        forward.record(0, &Source::new(&[0.5f32; 4], 2), Stream::HOST),
        ErrorKind::DType,
        "dtype",
    );
    refused(forward.record(0, &Source::new(&[1u8; 4], 2), Stream::HOST), ErrorKind::DType, "dtype");
    let layers = [LayerSource::new(0, &[0i32, 1]), LayerSource::new(1, &[0i64, 1])];
    refused(
        forward.record_layers(&Source::common(1), &layers, Stream::HOST),
        ErrorKind::DType,
        "one dtype",
    );
    let layers = [LayerSource::new(0, &[0i32, 1]).table(&[0, 1]), LayerSource::new(1, &[0i32, 1])];
    refused(
        forward.record_layers(&Source::common(1), &layers, Stream::HOST),
        ErrorKind::Argument,
        "one size",
    );
    refused(forward.record(0, &Source::common(1), Stream::HOST), ErrorKind::DType, "");
}

#[test]
fn memory_of_the_device_is_refused_by_the_host_backend() {
    let (_capturer, mut forward) = begun();
    let ids = [0i32, 1];
    // SAFETY: it is refused before anybody reads it.
    let on_device = unsafe { AnySlice::device(ids.as_ptr().cast(), DType::I32, 2) };
    refused(
        forward.record(0, &Source::new(on_device, 1), Stream::HOST),
        ErrorKind::Argument,
        "the host backend takes slices",
    );
    refused(
        forward.record(0, &Source::new(&ids, 1), Stream::PER_THREAD),
        ErrorKind::Argument,
        "stream",
    );
}

#[test]
fn routing_from_logits_checks_all_that_it_reads_and_writes() {
    let recomputed = [Provenance::Recomputed; LAYERS as usize];
    let (_capturer, mut forward) =
        support::config().layer_provenance(&recomputed).create().unwrap();
    forward.begin(2, Stream::HOST).unwrap();
    let router = Router::new(Method::Softmax).unwrap();
    let logits: Vec<f32> = (0..2 * EXPERTS).map(|i| ((i * 37) % 101) as f32).collect();
    let short = &logits[..2 * EXPERTS as usize - 1];
    refused(
        forward.route(0, &router, &mut Logits::new(short, 2), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "logits has 63",
    );
    let mut weights = [0f32; 3];
    let mut wanted = Logits::new(&logits, 2).weights(&mut weights, 0);
    refused(
        forward.route(0, &router, &mut wanted, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "weights has 3",
    );
    let biased = router.bias(&[0f32; 31]);
    refused(
        forward.route(0, &biased, &mut Logits::new(&logits, 2), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "bias has 31",
    );
    let hashed = router.hash_table(&[1, 2, 3], 2);
    refused(
        forward.route(0, &hashed, &mut Logits::new(&logits, 2), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "hash_table has 3",
    );
    let mut tokens = Logits::new(&logits, 2).tokens(&[1i32]);
    refused(
        forward.route(0, &router, &mut tokens, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "tokens has 1",
    );

    let mut weights = [0f32; 2 * K as usize];
    forward
        .route(0, &router, &mut Logits::new(&logits, 2).weights(&mut weights, 0), Stream::HOST)
        .unwrap();
    assert!(weights.iter().all(|weight| *weight > 0.0 && *weight <= 1.0), "{weights:?}");
}

#[test]
fn what_a_dispatch_brought_is_checked_before_it_is_read_or_written() {
    let (_capturer, mut forward) = begun();
    let (metadata, ids, chosen) = ([0i32; 4], [0i32, -1], [0i32, 5]);
    let mut counts = ReceivedCounts::default();
    let mut short = [0i32; 7];
    refused(
        forward.read_received(
            &mut Received::new(2, 0, 8, 2, 2, &mut short, &mut counts)
                .metadata(&metadata, 1)
                .ids(&ids),
            Stream::HOST,
        ),
        ErrorKind::ShapeMismatch,
        "executed has 7",
    );
    let mut executed = [0i32; 8];
    let mut received = Received::new(2, 0, 8, 2, 2, &mut executed, &mut counts)
        .metadata(&metadata, 1)
        .ids(&ids)
        .topk_ids(&[0i64; 2], 1);
    refused(
        forward.read_received(&mut received, Stream::HOST),
        ErrorKind::DType,
        "topk_ids have another dtype",
    );
    let mut received = received.topk_ids(&chosen, 2);
    refused(
        forward.compare_received(&mut received, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "topk_ids has 2",
    );
    let mut received = received.topk_ids(&chosen, 1);
    forward.read_received(&mut received, Stream::HOST).unwrap();
    forward.compare_received(&mut received, Stream::HOST).unwrap();
    assert_eq!([counts.tokens, counts.columns, counts.equal, counts.lost], [1, 2, 1, 1]);
}

#[test]
fn issue_wants_a_status_and_a_position_for_everything() {
    let (capturer, mut forward) = begun();
    let request = capturer.open().unwrap();
    let span = Span::new(request, 0, 0, 8);
    let options = IssueOptions::new().snapshot(Snapshot::Make);
    refused(
        forward.issue_into(&[span], &options, &mut [], Stream::HOST),
        ErrorKind::Argument,
        "0 statuses for 1",
    );
    let spread = [span.device_positions(8)];
    refused(
        forward.issue(&spread, &options.positions(&[0i32; 7]), Stream::HOST),
        ErrorKind::ShapeMismatch,
        "positions has 7",
    );
    refused(
        forward.issue(&spread, &options.positions(&[0f32; 8]), Stream::HOST),
        ErrorKind::DType,
        "",
    );
    refused(forward.issue(&spread, &options, Stream::HOST), ErrorKind::Argument, "");
    assert_eq!(
        forward
            .issue(&spread, &options.positions(&[7i64, 6, 5, 4, 3, 2, 1, 0]), Stream::HOST)
            .unwrap()
            .filing(),
        Filing::Whole
    );
    refused(
        capturer.close_batch_into(&[request], &mut []),
        ErrorKind::Argument,
        "0 statuses for 1",
    );
}

#[test]
fn rows_that_arrive_are_checked_before_they_are_read() {
    let (capturer, mut forward) = support::config().external_sink(true).create().unwrap();
    let request = capturer.open().unwrap();
    let later = IssueOptions::new().snapshot(Snapshot::Later);
    let span = Span::new(request, 0, 0, 4);
    // A slice may be gone when they are read.
    refused(
        forward.issue(&[span.device_positions(8)], &later.positions(&[0i32; 4]), Stream::HOST),
        ErrorKind::Argument,
        "positions_later",
    );
    let mut positions = Box::new([-1i64; 4]);
    // SAFETY: they live until the rows have arrived, and are written before.
    let of_three = unsafe { later.positions_later(positions.as_ptr(), 3) };
    refused(
        forward.issue(&[span.device_positions(8)], &of_three, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "positions has 3 elements and needs 4",
    );
    let address = positions.as_mut_ptr();
    // SAFETY: as above.
    let options = unsafe { later.positions_later(address.cast_const(), 4) };
    let issued = forward.issue(&[span.device_positions(8)], &options, Stream::HOST).unwrap();
    let step = issued.step().unwrap();
    refused(forward.begin(1, Stream::HOST), ErrorKind::State, "arrive later");

    let ids: Vec<i16> = (0..4 * LAYERS * K).map(|i| (i % EXPERTS) as i16).collect();
    let arrive = |rows: ArrivedRows<'_>| capturer.arrive(step, Some(&rows));
    let short = " elements";
    for rows in [
        ArrivedRows::new(&ids[1..], 4),
        ArrivedRows::new(&ids, 5),
        ArrivedRows::new(&ids, u32::MAX),
        ArrivedRows::new(&ids, 4).start(1),
        ArrivedRows::new(&ids, 4).row_stride(3),
        ArrivedRows::new(&ids, 4).layer_stride(9),
        ArrivedRows::new(&ids, 4).row_stride(i64::MAX),
        ArrivedRows::new(&ids, 4).layer_stride(i64::MAX),
        ArrivedRows::new(&ids, 4).row_stride(7).layer_stride(2),
        ArrivedRows::new(&ids, 0).start(25),
    ] {
        refused(arrive(rows), ErrorKind::ShapeMismatch, short);
    }
    refused(arrive(ArrivedRows::new(&ids, 4).row_stride(-2)), ErrorKind::ShapeMismatch, "-2");
    refused(
        arrive(ArrivedRows::new(&ids, 4).start(16).layer_stride(-8)),
        ErrorKind::ShapeMismatch,
        "-8",
    );
    refused(arrive(ArrivedRows::new(&[0u16; 24], 4)), ErrorKind::DType, "");
    refused(capturer.arrive(Step(2), None), ErrorKind::UnknownStep, "");
    assert_eq!(capturer.poll(step).unwrap(), Landing::Pending);

    // SAFETY: nothing reads them now.
    unsafe { address.cast::<[i64; 4]>().write([7, 6, 5, 4]) };
    std::thread::scope(|scope| {
        // Any thread may call it.
        let rows = ArrivedRows::new(&ids, 4).row_stride(6).layer_stride(2);
        scope.spawn(move || capturer.arrive(step, Some(&rows)).unwrap());
    });
    assert_eq!(forward.capturer().finalize(step).unwrap().landing, Landing::Landed);
    let routing = forward.capturer().finish(request, 8).unwrap();
    assert_eq!(routing.wait().unwrap(), Completeness::Incomplete);
    let copied = routing.to_vec::<i16>(&CopyOptions::new()).unwrap();
    let rows: Vec<&[i16]> = ids.chunks(6).rev().collect();
    assert_eq!(copied.ids[24..], rows.concat());
    assert!(copied.mask[..12].iter().all(|valid| !valid));
}

#[test]
fn tables_of_a_configuration_are_as_long_as_there_are_layers() {
    refused(
        support::config().layer_map([1, 2]).create(),
        ErrorKind::ShapeMismatch,
        "layer_map has 2 elements for 3 layers",
    );
    refused(
        support::config().layer_experts([8]).memory(),
        ErrorKind::ShapeMismatch,
        "layer_experts has 1",
    );
    refused(
        support::config().layer_provenance(&[Provenance::Captured]).create(),
        ErrorKind::ShapeMismatch,
        "layer_provenance has 1",
    );
    refused(Config::host().create(), ErrorKind::Argument, "");
    refused(support::config().sink_dtype(DType::F32).create(), ErrorKind::Argument, "");
}

#[test]
fn copies_into_memory_that_is_too_small_write_nothing() {
    let (capturer, mut forward) = support::config().create().unwrap();
    let routing = support::sequence(&capturer, &mut forward, 3, 4);
    let mut dst = [77i32; (4 * LAYERS * K) as usize - 1];
    refused(routing.copy_to(&mut dst, None, &CopyOptions::new()), ErrorKind::BufferTooSmall, "dst");
    let mut mask = [true; (4 * LAYERS) as usize - 1];
    let mut room = [77i32; (4 * LAYERS * K) as usize];
    refused(
        routing.copy_to(&mut room, Some(&mut mask), &CopyOptions::new()),
        ErrorKind::BufferTooSmall,
        "mask",
    );
    assert!(dst.iter().chain(&room).all(|id| *id == 77));
    refused(
        routing.copy_to(&mut [0u8; (4 * LAYERS * K) as usize], None, &CopyOptions::new().fill(3)),
        ErrorKind::Argument,
        "expert 3",
    );
    refused(
        routing.copy_to(&mut [0u8; (4 * LAYERS * K) as usize], None, &CopyOptions::new().fill(300)),
        ErrorKind::DType,
        "fill",
    );
    refused(routing.serialize_into(&mut [0; 64]), ErrorKind::BufferTooSmall, "");
    assert_eq!(
        routing.copy_len::<i64>(&CopyOptions::new().layers(1, 1)).unwrap(),
        (4 * K) as usize
    );
}

#[test]
fn arrays_of_the_wrong_length_are_not_imported() {
    let ids = [1u8, 2, 3, 4];
    let arrays = |segment| Arrays::new(1, 2, 0, 2).experts(8).segment(segment);
    refused(
        Routing::import(&arrays(ArraySegment::new(0, 3).ids(&ids)), Trust::None),
        ErrorKind::Argument,
        "ids has 4",
    );
    refused(
        Routing::import(&arrays(ArraySegment::new(0, u64::MAX).ids(&ids)), Trust::None),
        ErrorKind::Argument,
        "ids has 4",
    );
    let good = ArraySegment::new(0, 2).ids(&ids);
    refused(
        Routing::import(&arrays(good.validity(&[1])), Trust::None),
        ErrorKind::Argument,
        "validity has 1",
    );
    refused(
        Routing::import(&arrays(good.tags(&[1, 2, 3])), Trust::None),
        ErrorKind::Argument,
        "tags has 3",
    );
    refused(
        Routing::import(&arrays(good).layer_map(&[0, 1]), Trust::None),
        ErrorKind::Argument,
        "layer_map has 2",
    );
    refused(
        Routing::import(&arrays(good).layer_experts(&[]), Trust::None),
        ErrorKind::Argument,
        "layer_experts has 0",
    );
    let two = Arrays::new(1, 2, 0, 4)
        .experts(8)
        .segment(good)
        .segment(ArraySegment::new(2, 2).ids(&[1i16, 2, 3, 4]));
    refused(Routing::import(&two, Trust::None), ErrorKind::DType, "one dtype");
    refused(
        Routing::import(&arrays(ArraySegment::new(0, 2).ids(&[1u8, 1, 2, 3])), Trust::None),
        ErrorKind::Format,
        "",
    );
    // SAFETY: it is refused before anybody reads it.
    let on_device = unsafe { AnySlice::device(ids.as_ptr().cast::<c_void>(), DType::U8, 4) };
    refused(
        Routing::import(&arrays(ArraySegment::new(0, 2).ids(on_device)), Trust::None),
        ErrorKind::Argument,
        "device",
    );
    assert!(Routing::import(&arrays(good), Trust::None).is_ok());
}

// What is lent is read up to the end of the last row, padding included.
#[test]
fn arrays_with_a_stride_reach_to_the_end_of_their_last_row() {
    let rows = [1u8, 2, 1, 0, 3, 4, 1, 0]; // ids, validity, a zero
    let import = |ids: &[u8], validity: &[u8], stride, n| {
        let segment = ArraySegment::new(0, n).ids(ids).validity(validity);
        let arrays = Arrays::new(1, 2, 0, n).experts(8).row_stride(stride).segment(segment);
        Routing::import(&arrays, Trust::None)
    };
    let routing = import(&rows, &rows[2..7], 4, 2).unwrap();
    assert_eq!(routing.to_vec::<u8>(&CopyOptions::new()).unwrap().ids, [1, 2, 3, 4]);
    let routing = import(&rows, &rows[2..], 8, 1).unwrap();
    assert_eq!(routing.to_vec::<u8>(&CopyOptions::new()).unwrap().ids, [1, 2]);
    assert_eq!(import(&[], &[], 4, 0).unwrap().view().unwrap().rows(), 0);

    refused(import(&rows[..7], &rows[2..], 4, 2), ErrorKind::Argument, "ids has 7");
    refused(import(&rows, &rows[2..6], 4, 2), ErrorKind::Argument, "validity has 4");
    refused(import(&rows, &rows[2..], 4, 3), ErrorKind::Argument, "ids has 8");
    refused(import(&rows, &rows[2..], 1 << 63, 3), ErrorKind::Argument, "ids has 8");
    refused(import(&rows, &rows[2..], 2, 2), ErrorKind::ShapeMismatch, "row_stride is 2");
}

#[test]
fn the_sink_is_only_shown_where_it_was_begun() {
    let (_capturer, mut forward) = support::config().create().unwrap();
    refused(forward.sink_mut::<i16>(0), ErrorKind::State, "begun");
    forward.begin(5, Stream::HOST).unwrap();
    assert_eq!(forward.sink_mut::<i16>(0).unwrap().len(), (5 * K) as usize);
    refused(forward.sink_mut::<i32>(0), ErrorKind::DType, "I16");
    refused(forward.sink_mut::<i16>(LAYERS), ErrorKind::UnknownLayer, "");
    let sink = forward.sink(1).unwrap().unwrap();
    assert_eq!((sink.rows, sink.k, sink.dtype), (ROWS, K, DType::I16));
}

#[test]
fn a_disabled_capturer_answers_at_once_and_looks_at_nothing() {
    let (capturer, mut forward) = Config::disabled().create().unwrap();
    let request = capturer.open().unwrap();
    assert_eq!(request, RequestId::NONE);
    forward.begin(1000, Stream::HOST).unwrap();
    forward.record(5, &Source::new(&[0i32; 1], 1000), Stream::HOST).unwrap();
    forward.snapshot(Stream::HOST).unwrap();
    let issued = forward
        .issue(&[Span::new(request, 0, 0, 1000)], &IssueOptions::new(), Stream::HOST)
        .unwrap();
    assert_eq!((issued.step(), issued.filing()), (Ok(Step(0)), Filing::Whole));
    refused(capturer.finish(request, 3), ErrorKind::Disabled, "");
    refused(capturer.extract(request, .., Extract::Share), ErrorKind::Disabled, "");
    refused(forward.sink_mut::<i16>(0), ErrorKind::State, "");
    assert_eq!(forward.sink(0).unwrap(), None);
}
