//! Sources from arrays of ndarray, and routings as arrays.
#![cfg(feature = "ndarray")]

mod support;

use ndarray::{Array2, Array3, ArrayView2, Axis, s};
use routecap::*;
use support::{EXPERTS, K, LAYERS, expect_rows, refused, routed, routed_rows, sequence};

const ROWS: u64 = 6;

/// `[rows, k]` of a layer.
fn topk(layer: u32) -> Array2<i32> {
    Array2::from_shape_fn((ROWS as usize, K as usize), |(row, column)| {
        routed(4, row as u64, layer)[column]
    })
}

/// What comes out when each layer is recorded from the array that `of` makes.
fn captured(of: impl Fn(&mut Forward, u32)) -> Routing {
    let (capturer, mut forward) = support::config().create().unwrap();
    let request = capturer.open().unwrap();
    forward.begin(ROWS as u32, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        of(&mut forward, layer);
    }
    forward.snapshot(Stream::HOST).unwrap();
    forward
        .issue(&[Span::new(request, 0, 0, ROWS as u32)], &IssueOptions::new(), Stream::HOST)
        .unwrap()
        .step()
        .unwrap();
    let routing = capturer.finish(request, ROWS).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    routing
}

fn record(forward: &mut Forward, layer: u32, ids: ArrayView2<'_, i32>) {
    forward.record(layer, &Source::from_array(ids).unwrap(), Stream::HOST).unwrap();
}

#[test]
fn arrays_of_any_strides_are_recorded() {
    let dense = captured(|forward, layer| record(forward, layer, topk(layer).view()));
    let transposed = captured(|forward, layer| {
        let columns = topk(layer).reversed_axes().as_standard_layout().to_owned();
        record(forward, layer, columns.t());
    });
    let part_of_wider = captured(|forward, layer| {
        let mut wide = Array2::from_elem((ROWS as usize * 2, 9), -7);
        wide.slice_mut(s![..;2, 3..7;2]).assign(&topk(layer));
        record(forward, layer, wide.slice(s![..;2, 3..7;2]));
    });
    let backwards = captured(|forward, layer| {
        let mut reversed = topk(layer);
        reversed.invert_axis(Axis(0));
        let reversed = reversed.as_standard_layout().to_owned();
        record(forward, layer, reversed.slice(s![..;-1, ..]));
    });
    for routing in [dense, transposed, part_of_wider, backwards] {
        expect_rows(&routing, 4, 0..ROWS);
    }
}

#[test]
fn an_array_whose_elements_are_one_is_refused() {
    let row = topk(0).row(0).to_owned();
    let broadcast = row.broadcast((5, K as usize)).unwrap();
    assert_eq!(Source::from_array(broadcast).unwrap_err().kind(), ErrorKind::Argument);
}

#[test]
fn the_layout_of_an_array_cannot_be_changed_to_reach_what_lies_between_its_elements() {
    let provenance = [Provenance::Captured, Provenance::Recomputed, Provenance::Captured];
    let (_capturer, mut forward) =
        support::config().layer_provenance(&provenance).create().unwrap();
    forward.begin(3, Stream::HOST).unwrap();
    let changed = "layout of";

    let mut wide = Array2::from_shape_fn((3, 4), |(row, column)| (4 * row + column) as i32);
    let (left, mut right) = wide.view_mut().split_at(Axis(1), K as usize);
    let source = Source::from_array(left.view()).unwrap();
    for source in [source.row_stride(2), source.column_stride(-1), source.start(1)] {
        refused(forward.record(0, &source, Stream::HOST), ErrorKind::Argument, changed);
    }
    let columns = source.columns(3);
    refused(
        forward.record(0, &columns, Stream::HOST),
        ErrorKind::ShapeMismatch,
        "3 x 2, not 3 x 3",
    );
    right.fill(77);
    forward.record(0, &source.first_row(0).offset(1), Stream::HOST).unwrap();

    let mut wide = Array2::<f32>::zeros((3, 2 * EXPERTS as usize));
    let (left, mut right) = wide.view_mut().split_at(Axis(1), EXPERTS as usize);
    let router = Router::new(Method::Topk).unwrap();
    let logits = || Logits::from_array(left.view()).unwrap();
    for mut logits in [logits().row_stride(32), logits().column_stride(-1), logits().start(1)] {
        refused(forward.route(1, &router, &mut logits, Stream::HOST), ErrorKind::Argument, changed);
    }
    let fewer = &mut logits().experts(16);
    refused(forward.route(1, &router, fewer, Stream::HOST), ErrorKind::ShapeMismatch, "not 3 x 16");
    right.fill(77.0);
    forward.route(1, &router, &mut logits().first_row(0), Stream::HOST).unwrap();
}

#[test]
fn logits_are_routed_from_an_array() {
    let recomputed = [Provenance::Recomputed; LAYERS as usize];
    let (capturer, mut forward) = support::config().layer_provenance(&recomputed).create().unwrap();
    let request = capturer.open().unwrap();
    // The experts in the order of their logits: row r prefers r, then r + 1.
    let logits = Array2::from_shape_fn((EXPERTS as usize, 4), |(expert, row)| {
        -((expert as f32) - row as f32 - 0.1).abs()
    });
    let router = Router::new(Method::Topk).unwrap();
    forward.begin(4, Stream::HOST).unwrap();
    for layer in 0..LAYERS {
        forward
            .route(layer, &router, &mut Logits::from_array(logits.t()).unwrap(), Stream::HOST)
            .unwrap();
    }
    forward.snapshot(Stream::HOST).unwrap();
    forward
        .issue(&[Span::new(request, 0, 0, 4)], &IssueOptions::new(), Stream::HOST)
        .unwrap()
        .step()
        .unwrap();
    let routing = capturer.finish(request, 4).unwrap();
    assert!(routing.wait().unwrap().is_complete());
    let copied = routing.to_array::<u8>(&CopyOptions::new()).unwrap();
    assert_eq!(
        copied.ids,
        Array3::from_shape_fn((4, LAYERS as usize, K as usize), |(row, _, column)| (row + column)
            as u8)
    );
}

#[test]
fn routings_are_copied_into_arrays() {
    let (capturer, mut forward) = support::config().create().unwrap();
    let routing = sequence(&capturer, &mut forward, 8, 5);
    let shape = (5, LAYERS as usize, K as usize);
    let expected = Array3::from_shape_vec(shape, routed_rows(8, 0..5)).unwrap();

    let rows = routing.to_array::<i32>(&CopyOptions::new().strides(1000, 100)).unwrap();
    assert_eq!(rows.ids, expected);
    assert!(rows.mask.iter().all(|valid| *valid));
    let layers =
        routing.to_array::<i32>(&CopyOptions::new().order(Order::LayerMajor).layers(1, 2)).unwrap();
    assert_eq!(layers.ids, expected.view().permuted_axes([1, 0, 2]).slice(s![1.., .., ..]));
    assert_eq!(layers.mask.dim(), (2, 5));

    // Into a part of a larger one, by layers; what lies between stays.
    let mut large = Array3::from_elem((LAYERS as usize, 7, 4), -9);
    let part = large.slice_mut(s![.., 1..6, 1..3]).permuted_axes([1, 0, 2]);
    assert!(routing.copy_to_array(part, &CopyOptions::new()).unwrap().is_complete());
    assert_eq!(large.slice(s![.., 1..6, 1..3]).permuted_axes([1, 0, 2]), expected);
    assert_eq!(large.iter().filter(|id| **id == -9).count(), large.len() - expected.len());

    let mut other = Array3::<i32>::zeros((4, LAYERS as usize, K as usize));
    assert_eq!(
        routing.copy_to_array(other.view_mut(), &CopyOptions::new()).unwrap_err().kind(),
        ErrorKind::ShapeMismatch
    );
    let mut apart = Array3::<i32>::zeros((5, LAYERS as usize, 2 * K as usize));
    let error =
        routing.copy_to_array(apart.slice_mut(s![.., .., ..;2]), &CopyOptions::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    let mut backwards = Array3::<i32>::zeros(shape);
    let error = routing
        .copy_to_array(backwards.slice_mut(s![..;-1, .., ..]), &CopyOptions::new())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
}

#[test]
fn segments_are_arrays_in_place() {
    let (capturer, mut forward) = support::config().create().unwrap();
    let routing = sequence(&capturer, &mut forward, 2, 40);
    let view = routing.view().unwrap();
    let mut position = 0;
    for segment in view.segments() {
        let Some(SegmentArray::U8(ids)) = segment.array() else { panic!("no bytes") };
        assert_eq!(ids.dim(), (segment.rows() as usize, LAYERS as usize, K as usize));
        for row in ids.outer_iter() {
            for (layer, cell) in row.outer_iter().enumerate() {
                assert_eq!(cell.mapv(i32::from).to_vec(), routed(2, position, layer as u32));
            }
            position += 1;
        }
    }
    assert_eq!(position, 40);

    let wide = Arrays::new(1, 2, 3, 2)
        .experts(600)
        .segment(ArraySegment::new(3, 2).ids(&[599i16, 0, 1, 2]));
    let routing = Routing::import(&wide, Trust::None).unwrap();
    let view = routing.view().unwrap();
    let Some(SegmentArray::I16(ids)) = view.segments().next().unwrap().array() else {
        panic!("no 16 bits")
    };
    assert_eq!(ids.iter().copied().collect::<Vec<_>>(), [599, 0, 1, 2]);
    assert_eq!((view.row_stride(), ids.strides()), (8, &[4, 2, 1][..])); // with validity and zeros
    for (row, array) in view.iter().zip(ids.outer_iter()) {
        let Some(Ids::I16(in_place)) = row.ids() else { panic!("no 16 bits") };
        assert_eq!((in_place, in_place.as_ptr()), (array.to_slice().unwrap(), array.as_ptr()));
    }
}
