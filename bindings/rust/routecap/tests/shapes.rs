//! A slip of shape is an error, never a row of something else.

mod support;

use routecap::*;
use support::{EXPERTS, K, LAYERS, refused};

/// A layer that is not there was "missing", as a cell that the router of a layer did not write is.
/// A program that indexed by the decoder's layers saw holes, and shifted rows.
#[test]
fn a_layer_that_is_not_there_is_a_panic_that_names_it() {
    let (capturer, _forward) = support::config().create().unwrap();
    let request = capturer.open().unwrap();
    let routing = capturer.finish(request, 1).unwrap();
    let _ = routing.wait().unwrap();
    let view = routing.view().unwrap();
    let row = view.iter().next().unwrap();
    assert!(row.experts(LAYERS - 1).is_none());
    for read in [|row: Row<'_>| row.is_valid(LAYERS), |row: Row<'_>| row.experts(LAYERS).is_some()]
    {
        let said = std::panic::catch_unwind(|| read(row)).unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains(&format!("layer {LAYERS} of {LAYERS}")), "{said}");
        assert!(said.contains("captured"), "{said}");
    }
    assert_eq!(view.k(), K);
}

/// A model of k 8 and a capturer of k 6: 4 x 8 ids were read as the first 24 of them, six to a row.
/// All rows were there, and all but the first were parts of two.
#[test]
fn ids_that_are_not_rows_times_k_are_refused_unless_columns_or_a_stride_is_stated() {
    let (capturer, mut forward) =
        Config::host().layers(1).k(6).experts(64).rows(4).create().unwrap();
    let ids: Vec<i32> = (0..4 * 8).collect();
    forward.begin(4, Stream::HOST).unwrap();
    for wrong in [
        Source::new(&ids, 4),
        Source::new(&ids[..23], 4),
        Source::new(&ids[..0], 4),
        Source::new(&ids[..31], 4).columns(8),
        Source::new(&ids, 4).columns(7),
        Source::new(&ids, 3).columns(8),
        Source::new(&ids[..29], 4).row_stride(8),
        Source::new(&ids, 4).columns(8).row_index(&[0, 1, 2, 3, 4]),
        Source::new(&ids, 4).columns(8).live_rows(&[0, 2, 4]),
        Source::new(&ids, 4).columns(8).row_base(&[0, 2]),
    ] {
        refused(forward.record(0, &wrong, Stream::HOST), ErrorKind::ShapeMismatch, "elements");
    }
    let layer = [LayerSource::new(0, &ids)];
    let common = Source::common(4);
    refused(
        forward.record_layers(&common, &layer, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "not 24: 4 rows x 6 columns; where the rows have more than the layer's k, say columns",
    );
    for (right, whole_step) in [
        (Source::new(&ids, 4).columns(8), false),
        (Source::new(&ids[..30], 4).row_stride(8), false),
        (Source::common(4).columns(8).whole_step(true), true),
    ] {
        let request = capturer.open().unwrap();
        if whole_step {
            forward.record_layers(&right, &layer, Stream::HOST).unwrap();
        } else {
            forward.begin(4, Stream::HOST).unwrap();
            forward.record(0, &right, Stream::HOST).unwrap();
            forward.snapshot(Stream::HOST).unwrap();
        }
        let spans = [Span::new(request, 0, 0, 4)];
        let issued = forward.issue(&spans, &IssueOptions::new(), Stream::HOST).unwrap();
        let _ = capturer.finalize(issued.step().unwrap()).unwrap();
        let routing = capturer.finish(request, 4).unwrap();
        let _ = routing.wait().unwrap();
        let copied = routing.to_vec::<i32>(&CopyOptions::new()).unwrap();
        let want: Vec<i32> = ids.chunks(8).flat_map(|row| row[..6].to_vec()).collect();
        assert_eq!(copied.ids, want);
    }
}

/// What else has a shape: memory that is longer was made for another one.
#[test]
fn other_memory_is_as_long_as_what_is_read_or_written() {
    let recomputed = [Provenance::Recomputed; LAYERS as usize];
    let (_, mut forward) = support::config().layer_provenance(&recomputed).create().unwrap();
    forward.begin(2, Stream::HOST).unwrap();
    let router = Router::new(Method::Softmax).unwrap();
    let logits = vec![0f32; 2 * EXPERTS as usize];
    let mut weights = [0f32; 2 * K as usize + 1];
    let wide = vec![0f32; 2 * EXPERTS as usize + 1];
    for (name, mut wrong) in [
        ("logits", Logits::new(&wide, 2)),
        ("logits", Logits::new(&logits, 2).experts(16)),
        ("weights", Logits::new(&logits, 2).weights(&mut weights, 0)),
        ("tokens", Logits::new(&logits, 2).tokens(&[1i32, 2, 3])),
        ("live_rows", Logits::new(&logits, 2).live_rows(&[0, 2])),
    ] {
        let routed = forward.route(0, &router, &mut wrong, Stream::HOST);
        refused(routed, ErrorKind::ShapeMismatch, name);
    }
    let biased = router.bias(&[0f32; EXPERTS as usize + 1]);
    let mut logits = Logits::new(&logits, 2);
    refused(forward.route(0, &biased, &mut logits, Stream::HOST), ErrorKind::ShapeMismatch, "bias");

    let (capturer, mut forward) = support::config().create().unwrap();
    let routing = support::sequence(&capturer, &mut forward, 3, 4);
    let options = CopyOptions::new();
    let cells = 4 * LAYERS as usize;
    let (mut ids, mut mask) = (vec![0i32; cells * K as usize + 1], vec![true; cells + 1]);
    let mismatch = ErrorKind::ShapeMismatch;
    refused(routing.copy_to(&mut ids, None, &options), mismatch, "dst has 25 elements, not 24");
    let dst = &mut ids[..24];
    refused(routing.copy_to(dst, Some(&mut mask), &options), mismatch, "mask has 13");
    assert!(routing.copy_to(dst, Some(&mut mask[..12]), &options).unwrap().is_complete());
    refused(routing.copy_to(dst, None, &options.layers(0, 1)), mismatch, "dst has 24");

    let request = capturer.open().unwrap();
    let got = capturer.extract_into(request, 0..0, &mut ids, None, &options);
    refused(got, mismatch, "dst has 25 elements, not 0");
    let got = capturer.extract_into(request, Rows::landed(0), &mut ids, None, &options).unwrap();
    assert!(got.is_complete());

    let plan = PlanConfig::new([5], LAYERS, K, EXPERTS).create::<i32>().unwrap();
    let shape = plan.describe().unwrap();
    let mut ids = vec![0i32; shape.ids_bytes as usize / 4 + 1];
    let mut classes = vec![0u8; shape.classes_bytes as usize + 1];
    let sources = [(0, &routing)];
    refused(plan.gather(&sources, &mut ids, None), mismatch, "dst");
    ids.pop();
    refused(plan.gather(&sources, &mut ids, Some(&mut classes)), mismatch, "classes");
    classes.pop();
    plan.gather(&sources, &mut ids, Some(&mut classes)).unwrap();
    refused(plan.gather_values(&[Some(&[1; 5])], 0, &mut [0; 6]), mismatch, "dst has 6");
}

/// The sink row of the second span was forgotten: both requests had the first one's rows, complete.
#[test]
fn a_sink_row_in_two_spans_is_refused_unless_both_share_it() {
    let (capturer, mut forward) = support::config().create().unwrap();
    let (one, two) = (capturer.open().unwrap(), capturer.open().unwrap());
    forward.begin(2, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        forward.record(layer, &Source::new(&[1, 2, 3, 4], 2), Stream::HOST).unwrap();
    }
    forward.snapshot(Stream::HOST).unwrap();
    let spans = [Span::new(one, 0, 0, 2), Span::new(two, 0, 0, 2)];
    let options = IssueOptions::new();
    let issued = forward.issue(&spans, &options, Stream::HOST);
    refused(issued, ErrorKind::Conflict, "sink row 0");
    let issued = forward.issue(&[spans[0].shared(true), spans[1]], &options, Stream::HOST);
    refused(issued, ErrorKind::Conflict, "sink row 0");
    let issued = forward.issue(&spans.map(|span| span.shared(true)), &options, Stream::HOST);
    issued.unwrap().step().unwrap();
    for request in [one, two] {
        let routing = capturer.finish(request, 2).unwrap();
        let _ = routing.wait().unwrap();
        assert_eq!(
            routing.to_vec::<u8>(&CopyOptions::new()).unwrap().ids,
            [1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4]
        );
    }
}

/// The next of a sequence of numbers below `end` (SplitMix64).
fn draw(state: &mut u64, end: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % end as u64) as usize
}

const SLIPS: [&str; 15] = [
    "smaller k",
    "larger k",
    "fewer rows",
    "more rows",
    "columns",
    "stride",
    "sink row",
    "span beyond",
    "prefix sum",
    "row index",
    "type",
    "layer",
    "begun",
    "table",
    "copy",
];

/// A pass of two requests with one slip: whether that was refused. A row that is there and that no
/// router chose is a panic.
fn slipped(state: &mut u64, slip: &str) -> Result<bool> {
    let (k, rows, more) = (2 + draw(state, 5), 2 + draw(state, 4), 1 + draw(state, 2));
    let mut chosen = Vec::new();
    for _ in 0..2 * rows {
        let mut all: Vec<i32> = (0..64).collect();
        for _ in 0..k {
            let at = draw(state, all.len());
            chosen.push(all.swap_remove(at));
        }
    }
    let own_k = match slip {
        "smaller k" => k.saturating_sub(more).max(1),
        "larger k" => k + more,
        _ => k,
    };
    let config = Config::host().layers(2).k(own_k as u32).experts(64).rows(32);
    let (capturer, mut forward) = config.create()?;
    let wide: Vec<i32> = chosen.iter().flat_map(|id| [*id, 0]).collect(); // as 64-bit ids lie
    let (sums, index) = ([0, rows as i32, 2 * rows as i32], vec![0; 2 * rows - more]);
    let table: Vec<i32> = (0..32).collect(); // of the 64 that there are
    let count = 2 * rows as u32;
    let source = match slip {
        "fewer rows" => Source::new(&chosen, count - more as u32),
        "more rows" => Source::new(&chosen, count + more as u32),
        "columns" => Source::new(&chosen, count).columns((k + more) as u32),
        "stride" => Source::new(&chosen, count).row_stride((k + more) as i64),
        "prefix sum" => Source::new(&chosen, count).live_rows(&sums),
        "row index" => Source::new(&chosen, count).row_index(&index),
        "type" => Source::new(&wide, count),
        "table" => Source::new(&chosen, count).table(&table),
        _ => Source::new(&chosen, count),
    };
    let begun = if slip == "begun" { count - more as u32 } else { count };
    let requests = [capturer.open()?, capturer.open()?];
    let first = if slip == "sink row" { 0 } else { rows as u32 };
    let length = rows as u32 + if slip == "span beyond" { more as u32 } else { 0 };
    let spans =
        [Span::new(requests[0], 0, 0, rows as u32), Span::new(requests[1], 0, first, length)];
    let mut pass = || -> Result<()> {
        forward.begin(begun, Stream::HOST)?;
        for layer in 0..2 {
            forward.record(layer + u32::from(slip == "layer"), &source, Stream::HOST)?;
        }
        forward.snapshot(Stream::HOST)?;
        let _ = forward.issue(&spans, &IssueOptions::new(), Stream::HOST)?.step()?;
        Ok(())
    };
    if pass().is_err() {
        return Ok(true);
    }
    let mut refused = false;
    for (i, request) in requests.into_iter().enumerate() {
        let count = spans[i].rows() as usize; // more than there are, if that is the slip
        let routing = capturer.finish(request, count as u64)?;
        let completeness = routing.wait()?;
        if slip == "copy" {
            let mut longer = vec![0i32; count * 2 * (k + more)];
            refused |= routing.copy_to(&mut longer, None, &CopyOptions::new()).is_err();
        }
        for row in routing.view()?.iter() {
            let at = (i * rows + row.position() as usize) * k;
            for cell in row.cells().flatten() {
                let got: Vec<i32> = cell.iter().map(i32::from).collect();
                assert_eq!(got, chosen[at..at + k], "{slip}");
            }
        }
        assert!(i == 0 || refused || !completeness.is_complete(), "{slip}: nothing is missing");
    }
    Ok(refused)
}

/// What a program gets wrong about a shape is refused, or rows are missing: never is there a row
/// that no router chose.
#[test]
fn of_a_hundred_slips_none_gives_a_row_that_nobody_chose() {
    let (mut state, mut refused, mut seen) = (49, 0, [false; SLIPS.len()]);
    for _ in 0..100 {
        let slip = draw(&mut state, SLIPS.len());
        seen[slip] = true;
        refused += usize::from(slipped(&mut state, SLIPS[slip]).unwrap());
    }
    assert!(seen.iter().all(|seen| *seen) && refused > 60, "{refused} refused, {seen:?}");
}
