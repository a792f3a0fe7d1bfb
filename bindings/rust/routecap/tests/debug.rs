//! Debug shows what a value is, in the words of its methods: no addresses of the library, no
//! numbers of C.

mod support;

use routecap::*;
use support::{LAYERS, config, routed};

/// A capturer that files when it is told to, and a request whose second row lacks its second layer.
fn two_rows() -> (Capturer, Forward, RequestId) {
    let (capturer, mut forward) = config().manual_progress(true).create().unwrap();
    let request = capturer.open().unwrap();
    forward.begin(2, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        let rows = if layer == 1 { 1 } else { 2 };
        let ids: Vec<i32> = (0..rows).flat_map(|position| routed(0, position, layer)).collect();
        forward.record(layer, &Source::new(&ids, rows as u32), Stream::HOST).unwrap();
    }
    forward.snapshot(Stream::HOST).unwrap();
    let span = Span::new(request, 0, 0, 2);
    forward.issue(&[span], &IssueOptions::new().tag(7), Stream::HOST).unwrap().step().unwrap();
    (capturer, forward, request)
}

#[test]
fn a_routing_shows_its_shape_and_what_is_missing_or_that_it_is_pending() {
    let (capturer, _forward, request) = two_rows();
    let routing = capturer.finish(request, 2).unwrap();
    assert_eq!(format!("{routing:?}"), "Routing(pending)");
    capturer.progress().unwrap();
    assert_eq!(
        format!("{routing:?}"),
        "Routing { first: 0, rows: 2, layers: 3, k: 2, missing: 1 }"
    );
    assert_eq!(
        format!("{:?}", routing.slice(1..).unwrap()),
        "Routing { first: 1, rows: 1, layers: 3, k: 2, missing: 1 }"
    );
    assert_eq!(
        format!("{:?}", routing.slice(..1).unwrap()),
        "Routing { first: 0, rows: 1, layers: 3, k: 2, missing: 0 }"
    );
}

#[test]
fn what_is_seen_in_a_routing_shows_its_rows_and_cells() {
    let (capturer, _forward, request) = two_rows();
    let routing = capturer.finish(request, 3).unwrap(); // the third row was never issued
    let _ = routing.wait().unwrap();
    let view = routing.view().unwrap();
    assert_eq!(
        format!("{view:?}"),
        "View { first: 0, rows: 3, layers: 3, k: 2, experts: 32, id_space: Logical, complete: false, segments: 2 }"
    );
    let segments: Vec<String> = view.segments().map(|segment| format!("{segment:?}")).collect();
    assert_eq!(segments[0], "Segment { first: 0, rows: 2, layers: 3, k: 2, missing: 1 }");
    assert_eq!(segments[1], "Segment { first: 2, rows: 1, layers: 3, k: 2, missing: 3 }");
    let row = |position| format!("{:?}", view.row(position).unwrap());
    let cell = |position, layer| format!("Some({:?})", routed(0, position, layer));
    assert_eq!(
        row(0),
        format!(
            "Row {{ position: 0, tag: 7, cells: [{}, {}, {}] }}",
            cell(0, 0),
            cell(0, 1),
            cell(0, 2)
        )
    );
    assert_eq!(
        row(1),
        format!("Row {{ position: 1, tag: 7, cells: [{}, None, {}] }}", cell(1, 0), cell(1, 2))
    );
    assert_eq!(row(2), "Row { position: 2, tag: 0, cells: [None, None, None] }");
    assert_eq!(
        format!("{:?}", routing.missing().unwrap()[0]),
        "Missing { positions: 1..2, layers: 1..2, reason: Unwritten }"
    );
}

#[test]
fn a_capturer_and_its_forward_path_show_what_they_capture() {
    let (capturer, forward, request) = two_rows();
    let shown = "Capturer { backend: Host, disabled: false, layers: 3, k: 2, experts: 32 }";
    assert_eq!(format!("{capturer:?}"), shown);
    assert_eq!(format!("{forward:?}"), format!("Forward {{ capturer: {shown}, begun: 2 }}"));
    // As the library's texts write it.
    assert_eq!(format!("{request:?}"), format!("RequestId({:016x})", request.0));
    let of_layers = config().layer_experts([8, 16, 32]).create().unwrap().0;
    assert!(format!("{of_layers:?}").contains("experts: [8, 16, 32]"));
}

#[test]
fn what_is_passed_to_calls_shows_names_and_not_numbers_of_c() {
    let configured = format!(
        "{:?}",
        config().role(Role::Mirror).sink_dtype(DType::I32).compare(true).slots(2).checked(true)
    );
    for text in [
        "backend: Host",
        "role: Mirror",
        "layers: 3",
        "slots: 2",
        "sink_dtype: Some(I32)",
        "compare: true",
        "manual_progress: false",
        "may_lose: false",
        "checked: true",
    ] {
        assert!(configured.contains(text), "{text} is not in {configured}");
    }
    let id = RequestId(4);
    let shown = [
        (
            format!("{:?}", Span::new(id, 1, 2, 3).speculative()),
            "Span { request: RequestId(0000000000000004), position: 1, sink_row: 2, rows: 3, speculative: true, shared: false, position_end: None }",
        ),
        (
            format!("{:?}", AcceptItem::new(id, Step(1), Kept::Indices(&[0, 2]))),
            "AcceptItem { request: RequestId(0000000000000004), step: Step(1), kept: Indices([0, 2]), result: Ok(()) }",
        ),
        (
            format!("{:?}", ExtractItem::new(id, 2..5, Extract::Take, Strictness::Strict)),
            "ExtractItem { request: RequestId(0000000000000004), rows: Rows { first: 2, count: 3 }, mode: Take, strictness: Strict, \
             routing: None, result: Ok(Complete) }",
        ),
        (
            format!("{:?}", FinishItem::new(id, 9)),
            "FinishItem { request: RequestId(0000000000000004), rows: 9, routing: None, result: Ok(()) }",
        ),
        (
            format!(
                "{:?}",
                CopyOptions::new()
                    .order(Order::LayerMajor)
                    .strictness(Strictness::StrictButRecomputed)
                    .layers(1, 2)
            ),
            "CopyOptions { order: LayerMajor, strictness: StrictButRecomputed, first_layer: 1, layers: 2, row_stride: 0, layer_stride: 0, \
             fill: -1, none: -2 }",
        ),
    ];
    for (is, expected) in shown {
        assert_eq!(is, expected);
    }
    let router = format!(
        "{:?}",
        Router::custom(Score::Sigmoid)
            .groups(8, 4)
            .group_score(GroupScore::Top2)
            .bias(&[1f32])
            .renormalize(true)
    );
    for text in [
        "score: Sigmoid",
        "group_score: Top2",
        "groups: 8",
        "groups_kept: 4",
        "renormalize: true",
        "dtype: F32",
    ] {
        assert!(router.contains(text), "{text} is not in {router}");
    }
    let (mut executed, mut counts) = ([0i32; 4], ReceivedCounts::default());
    let received = Received::new(8, 3, 256, 6, 64, &mut executed, &mut counts);
    let received = format!("{:?}", received.metadata(&[0i32; 0], 200));
    for text in ["ranks: 8", "rank: 3", "tokens_per_rank: 64", "rows: 200", "experts: 256", "k: 6"]
    {
        assert!(received.contains(text), "{text} is not in {received}");
    }
}

#[test]
fn what_calls_answered_shows_names_and_not_numbers_of_c() {
    let (capturer, mut forward, request) = two_rows();
    let mut items = [FinishItem::new(request, 2), FinishItem::new(RequestId(4), 1)];
    assert!(!capturer.finish_batch(&mut items).unwrap());
    capturer.progress().unwrap();
    assert!(
        format!("{:?}", items[0]).ends_with("routing: Some(Routing { first: 0, rows: 2, layers: 3, k: 2, missing: 1 }), result: Ok(()) }")
    );
    assert!(
        format!("{:?}", items[1])
            .ends_with("rows: 1, routing: None, result: Err(UnknownRequest) }")
    );
    let mut status = [ItemStatus::default()];
    assert!(!capturer.close_batch_into(&[request], &mut status).unwrap());
    assert_eq!(format!("{status:?}"), "[ItemStatus(ROUTECAP_ERR_UNKNOWN_REQUEST)]");

    forward.begin(2, Stream::HOST).unwrap();
    forward.record(0, &Source::new(&[1i32, 2, 3, 99], 2), Stream::HOST).unwrap();
    let mut probes = [LayerProbe::default(); 2];
    assert!(forward.probe(2, &mut probes, Stream::HOST).unwrap());
    let probe = format!("{:?}", probes[0]);
    assert!(
        probe.starts_with("LayerProbe { found: [\"out of range\"]")
            && probe.ends_with("range: Some((1, 3)) }"),
        "{probe}"
    );
    assert!(
        format!("{:?}", probes[1]).starts_with("LayerProbe { found: [\"silent\""),
        "{:?}",
        probes[1]
    );
}
