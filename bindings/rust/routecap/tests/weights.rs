//! Weights from Rust: typed slices of what was recorded, and slips of type and length.

mod support;

use routecap::*;
use support::refused;

/// A capturer of one layer, two experts of eight for each token.
fn capturer(weights: Option<WeightsType>) -> (Capturer, Forward) {
    let mut config = Config::host().layers(1).k(2).experts(8).rows(4);
    if let Some(weights) = weights {
        config = config.weights(weights);
    }
    config.create().unwrap()
}

/// What `record` leaves of two rows.
fn recorded(
    (capturer, mut forward): (Capturer, Forward),
    record: impl FnOnce(&mut Forward) -> Result<()>,
) -> Routing {
    let request = capturer.open().unwrap();
    forward.begin(2, Stream::HOST).unwrap();
    record(&mut forward).unwrap();
    forward.snapshot(Stream::HOST).unwrap();
    let spans = [Span::new(request, 0, 0, 2)];
    forward.issue(&spans, &IssueOptions::new(), Stream::HOST).unwrap().step().unwrap();
    let routing = capturer.finish(request, ALL).unwrap();
    let _ = routing.wait().unwrap();
    routing
}

const IDS: [i32; 4] = [3, 1, 7, 0];

#[test]
fn weights_of_each_type_are_slices_of_it() {
    let f32s = [0.5f32, f32::INFINITY, -0.0, 3.0];
    let routing = recorded(capturer(Some(WeightsType::F32)), |forward| {
        forward.record(0, &Source::new(&IDS, 2).weights(&f32s), Stream::HOST)
    });
    let view = routing.view().unwrap();
    assert_eq!(view.weights_type(), Some(WeightsType::F32));
    let row = view.row(0).unwrap();
    assert_eq!(row.weights(0), Some(Weights::F32(&[0.5, f32::INFINITY])));
    assert_eq!(format!("{:?}", row.weights(0).unwrap()), "[0.5, inf]");
    assert_eq!(routing.coverage().unwrap().cells_weighted, 2);
    let copied = routing.weights_to_vec::<f32>(&CopyOptions::new()).unwrap();
    assert_eq!((copied.weights.as_slice(), copied.mask), (&f32s[..], vec![true; 2]));
    assert!(copied.completeness.is_complete());

    let halves = [F16(0x3c00), F16(0x4000), F16(0x7e00), F16(0)]; // the third is NaN
    let routing = recorded(capturer(Some(WeightsType::F16)), |forward| {
        let layer = LayerSource::new(0, &IDS).weights(&halves);
        forward.record_layers(&Source::common(2), &[layer], Stream::HOST)
    });
    let view = routing.view().unwrap();
    let (first, second) = (view.row(0).unwrap(), view.row(1).unwrap());
    assert_eq!(first.weights(0), Some(Weights::F16(&halves[..2])));
    assert_eq!((second.weights(0), second.is_weighted(0)), (None, false));
    assert!(second.is_valid(0) && second.experts(0).is_some());
    let wide = routing.weights_to_vec::<f32>(&CopyOptions::new()).unwrap();
    assert_eq!(wide.weights[..2], [1.0, 2.0]);
    assert!(wide.weights[2..].iter().all(|weight| weight.is_nan()));
    assert_eq!(wide.mask, [true, false]);
    assert!(!wide.completeness.is_complete());

    let packed = [0x3_3f80, 0x1_4000, 0x7_0000, 0xbf80].map(IdWeight);
    let routing = recorded(capturer(Some(WeightsType::BF16)), |forward| {
        forward.record(0, &Source::new(&packed, 2), Stream::HOST)
    });
    let view = routing.view().unwrap();
    let weights = [0x3f80, 0x4000, 0, 0xbf80].map(BF16);
    for (row, weights) in view.iter().zip(weights.chunks(2)) {
        assert_eq!(row.weights(0), Some(Weights::BF16(weights)));
    }
    let data = routing.serialize().unwrap();
    assert_eq!(serialized_info(&data).unwrap().weights, Some(WeightsType::BF16));
    let sequence = Sequence::like(&routing).unwrap();
    assert_eq!(sequence.routing().unwrap().view().unwrap().weights_type(), Some(WeightsType::BF16));
}

#[test]
fn there_are_as_many_weights_as_experts() {
    let config = Config::host().layers(1).k(2).layer_min_k([0]).experts(8).rows(4);
    let made = config.weights(WeightsType::F32).create().unwrap();
    let routing = recorded(made, |forward| {
        let source = Source::new(&[3, -1, -1, -1], 2).none(-1);
        forward.record(0, &source.weights(&[0.5f32, f32::NAN, f32::NAN, 1.0]), Stream::HOST)
    });
    let view = routing.view().unwrap();
    assert_eq!(view.row(0).unwrap().weights(0), Some(Weights::F32(&[0.5])));
    assert!(view.row(1).unwrap().weights(0).unwrap().is_empty());
    let copied = routing.weights_to_vec::<f32>(&CopyOptions::new()).unwrap();
    assert_eq!(copied.weights, [0.5, 0.0, 0.0, 0.0]);
}

#[test]
fn a_router_writes_weights_beside_its_ids() {
    let routing = recorded(capturer(Some(WeightsType::F32)), |forward| {
        forward.sink_mut::<i16>(0)?.copy_from_slice(&[3, 1, 7, 0]);
        let weights = forward.sink_weights_mut::<f32>(0)?;
        assert!(weights.iter().all(|weight| weight.is_nan()));
        weights[..2].copy_from_slice(&[0.25, 0.75]);
        Ok(())
    });
    let view = routing.view().unwrap();
    assert_eq!(view.row(0).unwrap().weights(0), Some(Weights::F32(&[0.25, 0.75])));
    assert!(view.row(1).unwrap().is_valid(0) && !view.row(1).unwrap().is_weighted(0));

    let (_capturer, mut forward) = capturer(Some(WeightsType::F16));
    refused(forward.sink_weights_mut::<F16>(0), ErrorKind::State, "no rows that were begun");
    forward.begin(1, Stream::HOST).unwrap();
    refused(forward.sink_weights_mut::<BF16>(0), ErrorKind::DType, "F16");
    let (_capturer, mut forward) = capturer(None);
    forward.begin(1, Stream::HOST).unwrap();
    refused(forward.sink_weights_mut::<F16>(0), ErrorKind::State, "no sink for weights");
}

/// Weights that are as long as other rows would be read as those of other tokens.
#[test]
fn weights_of_another_length_type_or_place_are_refused() {
    let (_capturer, mut forward) = capturer(Some(WeightsType::F32));
    let weights = [1.0f32, 2.0, 3.0, 4.0];
    forward.begin(2, Stream::HOST).unwrap();
    let source = Source::new(&IDS, 2);
    for wrong in [
        source.weights(&weights[..3]),
        source.weights(&weights).weights_start(1),
        source.weights(&weights).weights_row_stride(3),
        Source::new(&IDS, 1).columns(4).weights(&weights[..2]),
    ] {
        let result = forward.record(0, &wrong, Stream::HOST);
        refused(result, ErrorKind::ShapeMismatch, "weights has");
    }
    let halves = [F16(0); 4];
    refused(
        forward.record(0, &source.weights(&halves), Stream::HOST),
        ErrorKind::DType,
        "weights_dtype",
    );
    let backwards = source.weights(&weights).weights_start(2).weights_row_stride(-2);
    refused(forward.record(0, &backwards, Stream::HOST), ErrorKind::Argument, "weights_row_stride");
    // SAFETY: nothing is read, since the call is refused.
    let elsewhere = unsafe { Slice::device(weights.as_ptr(), 4) };
    refused(
        forward.record(0, &source.weights(elsewhere), Stream::HOST),
        ErrorKind::Argument,
        "weights is memory of the device",
    );
    let layer = LayerSource::new(0, &IDS).weights(&weights[..3]);
    refused(
        forward.record_layers(&Source::common(2), &[layer], Stream::HOST),
        ErrorKind::ShapeMismatch,
        "weights has 3 elements, not 4",
    );
    // Rows that arrive, and copies.
    let (capturer, mut forward) = capturer(Some(WeightsType::F32));
    let request = capturer.open().unwrap();
    let later = IssueOptions::new().snapshot(Snapshot::Later);
    let spans = [Span::new(request, 0, 0, 2)];
    let step = forward.issue(&spans, &later, Stream::HOST).unwrap().step().unwrap();
    let rows = ArrivedRows::new(&IDS, 2);
    let arrive = |rows: ArrivedRows<'_>| capturer.arrive(step, Some(&rows));
    refused(arrive(rows.weights(&weights[..3])), ErrorKind::ShapeMismatch, "weights has 3");
    refused(arrive(rows.weights(&halves)), ErrorKind::DType, "weights of F16");
    arrive(rows.weights(&weights)).unwrap();
    let routing = capturer.finish(request, ALL).unwrap();
    let _ = routing.wait().unwrap();
    assert_eq!(routing.weights_to_vec::<f32>(&CopyOptions::new()).unwrap().weights, weights);
    let mut longer = [0.0f32; 5];
    refused(
        routing.copy_weights(&mut longer, None, &CopyOptions::new()),
        ErrorKind::ShapeMismatch,
        "dst has 5 elements, not 4",
    );
    refused(routing.weights_to_vec::<F16>(&CopyOptions::new()), ErrorKind::DType, "as F32");
}

#[test]
fn records_with_weights_are_lent_in_place() {
    // 2 rows of 1 layer, k = 2: ids, a byte of validity, one of that of weights, and two weights.
    #[repr(align(16))]
    struct Records([u16; 8]);
    let owner = Box::new(Records([0x0103, 0x0101, 0x3c00, 0x4000, 0x0007, 0x0001, 0, 0]));
    let first = owner.0.as_ptr() as usize;
    fn bytes(records: &Records) -> &[u8] {
        // SAFETY: these are the bytes of the array.
        unsafe { std::slice::from_raw_parts(records.0.as_ptr().cast(), 16) }
    }
    fn halves(records: &Records) -> &[F16] {
        // SAFETY: F16 is the bits of one.
        unsafe { std::slice::from_raw_parts(records.0.as_ptr().cast(), 8) }
    }
    let routing = Routing::import_lent(
        owner,
        |records| {
            let rows = ArraySegment::new(0, 2)
                .ids(bytes(records))
                .validity(&bytes(records)[2..])
                .weights(&halves(records)[2..])
                .weights_validity(&bytes(records)[3..]);
            Arrays::new(1, 2, 0, 2).experts(8).row_stride(8).segment(rows)
        },
        Trust::None,
    )
    .unwrap();
    let view = routing.view().unwrap();
    assert_eq!((view.row_stride(), view.weights_type()), (8, Some(WeightsType::F16)));
    let row = view.row(0).unwrap();
    let Some(Weights::F16(weights)) = row.weights(0) else { panic!("{row:?}") };
    assert_eq!(weights, [F16(0x3c00), F16(0x4000)]);
    assert_eq!(weights.as_ptr() as usize, first + 4);
    assert!(view.row(1).unwrap().is_valid(0) && view.row(1).unwrap().weights(0).is_none());
}

#[test]
fn imported_weights_have_one_type_and_the_length_of_their_rows() {
    let (ids, weights) = ([3u8, 1, 7, 0], [1.0f32, 2.0, 3.0, 4.0]);
    let segment = ArraySegment::new(0, 2).ids(&ids);
    let import = |segment| {
        Routing::import(&Arrays::new(1, 2, 0, 2).experts(8).segment(segment), Trust::None)
    };
    refused(import(segment.weights(&weights[..3])), ErrorKind::Argument, "weights has 3");
    refused(
        import(segment.weights(&weights).weights_validity(&[1])),
        ErrorKind::Argument,
        "weights_validity has 1",
    );
    let one =
        |first, halves: &'static [F16]| ArraySegment::new(first, 1).ids(&[3u8, 1]).weights(halves);
    let arrays = Arrays::new(1, 2, 0, 2).experts(8).weights(WeightsType::F32);
    refused(
        Routing::import(&arrays.segment(one(0, &[F16(0); 2])), Trust::None),
        ErrorKind::DType,
        "weights of one dtype",
    );
    let routing = import(segment.weights(&weights)).unwrap();
    assert_eq!(routing.weights_to_vec::<f32>(&CopyOptions::new()).unwrap().weights, weights);
}

#[test]
fn a_plan_gathers_weights_where_it_gathers_ids() {
    let weights = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let rows = ArraySegment::new(0, 4).ids(&[3u8, 1, 7, 0, 2, 4, 6, 5]).weights(&weights);
    let rows = rows.weights_validity(&[1, 0, 1, 1]);
    let arrays = Arrays::new(1, 2, 0, 4).experts(8).segment(rows);
    let routing = Routing::import(&arrays, Trust::None).unwrap();
    // Five tokens, of which the last is not needed, and three rows of padding.
    let plan = PlanConfig::new([5], 1, 2, 8).align(8).create::<i32>().unwrap();
    let mut dst = [9.0f32; 16];
    let missing = plan.gather_weights(&[(0, &routing)], -1.0, &mut dst).unwrap();
    assert_eq!(missing, 1);
    assert_eq!(dst[..8], [1.0, 2.0, -1.0, -1.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(dst[8..], [0.0; 8]);
    assert_eq!(plan.gather_weights(&[], f32::NAN, &mut dst).unwrap(), 4);
    assert!(dst[..8].iter().all(|weight| weight.is_nan()));
    let sources = [(0, &routing)];
    refused(plan.gather_weights(&sources, 0.0, &mut [F16(0); 16]), ErrorKind::DType, "F32");
    refused(plan.gather_weights(&sources, 0.0, &mut [0.0; 17]), ErrorKind::ShapeMismatch, "17");
    refused(plan.gather_weights(&sources, 0.0, &mut [0.0; 15]), ErrorKind::BufferTooSmall, "");
}

#[test]
fn a_message_without_weights_is_a_loss() {
    let rows = ArraySegment::new(0, 1).ids(&[3u8, 1]).weights(&[1.0f32, 2.0]);
    let arrays = Arrays::new(1, 2, 0, 1).experts(8).segment(rows);
    let routing = Routing::import(&arrays, Trust::None).unwrap();
    let options = WireOptions::new(WireFormat::Lists);
    refused(routing.to_wire(&options), ErrorKind::Lossy, "weights");
    let (bytes, report) = routing.to_wire(&options.allow(WireFacts::WEIGHTS)).unwrap();
    assert_eq!((bytes.as_slice(), report.lost), (&b"[[[3,1]]]"[..], WireFacts::WEIGHTS));
    assert_eq!(format!("{:?}", WireFacts::WEIGHTS), "WireFacts(WEIGHTS)");
    let (bytes, report) = routing.to_wire(&WireOptions::new(WireFormat::Serialized)).unwrap();
    assert_eq!((bytes, report.lost), (routing.serialize().unwrap(), WireFacts::default()));
}
