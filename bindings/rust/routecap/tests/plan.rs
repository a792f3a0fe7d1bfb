//! Plans from Rust: the layouts of slime, verl, SkyRL and Megatron-Core, and what only this layer can
//! get wrong.

use routecap::{
    ArraySegment, Arrays, CopyOptions, ErrorKind, Order, PlanClass, PlanConfig, PlanContext,
    PlanFill, PlanLayout, PlanLost, Routing, Trust, WeightsType, serialized_info, slice_serialized,
};
use serde_json::Value;

/// What the router of a layer chose for a token.
fn routed(sample: usize, token: usize, layer: usize, column: usize) -> i64 {
    ((977 * sample + 31 * token + 7 * layer + column) % 256) as i64
}

fn routing(sample: usize, rows: usize, layers: usize) -> Routing {
    let at = |i: usize| routed(sample, i / 2 / layers, i / 2 % layers, i % 2) as u8;
    let ids: Vec<u8> = (0..rows * layers * 2).map(at).collect();
    let mut arrays = Arrays::new(layers as u32, 2, 0, rows as u64).experts(256);
    if rows > 0 {
        arrays = arrays.segment(ArraySegment::new(0, rows as u64).ids(&ids[..]));
    }
    Routing::import(&arrays, Trust::None).unwrap()
}

fn number(case: &Value, name: &str) -> u64 {
    case[name].as_u64().unwrap_or(0)
}

#[test]
fn tokens_go_where_trainers_put_them() {
    let path = format!("{}/../../../tests/plan/golden/layouts.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let lengths: Vec<u64> =
            case["lengths"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let tokens: Vec<(usize, usize)> = lengths
            .iter()
            .enumerate()
            .flat_map(|(i, &n)| (0..n as usize).map(move |t| (i, t)))
            .collect();
        let routings: Vec<Routing> =
            lengths.iter().enumerate().map(|(i, &n)| routing(i, n as usize - 1, 5)).collect();
        let sources: Vec<(u64, &Routing)> =
            routings.iter().enumerate().map(|(i, r)| (i as u64, r)).collect();
        let context = match case["context"].as_str().unwrap() {
            "zigzag" => PlanContext::Zigzag,
            "contiguous" => PlanContext::Contiguous,
            "allgather" => PlanContext::Allgather,
            _ => PlanContext::None,
        };
        let (context_size, tensor_size) =
            (number(case, "context_size") as u32, number(case, "tensor_size") as u32);
        let parallel = case["sequence_parallel"].as_bool().unwrap();
        let mut golden = case["ranks"].as_array().unwrap().iter();
        for context_rank in 0..context_size {
            for tensor_rank in 0..if parallel { tensor_size } else { 1 } {
                let rows: Vec<i64> = golden
                    .next()
                    .unwrap()
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|n| n.as_i64().unwrap())
                    .collect();
                let mut config = PlanConfig::new(lengths.clone(), 2, 2, 256)
                    .layer_map([1, 3])
                    .context(context, context_size, context_rank)
                    .align(number(case, "align"))
                    .align_total(number(case, "align_total"), number(case, "least_total"))
                    .align_rank(number(case, "align_rank"))
                    .width(number(case, "width"))
                    .order(Order::LayerMajor)
                    .lost(PlanLost::Error);
                if parallel {
                    config = config.sequence_parallel(tensor_size, tensor_rank);
                }
                if case["layout"] == "padded_right" {
                    config = config.layout(PlanLayout::PaddedRight);
                }
                if case["sequence_first"].as_bool().unwrap_or(false) {
                    config = config.sequence_first();
                }
                let plan = config.create::<i64>().unwrap();
                let shape = plan.describe().unwrap();
                assert_eq!(shape.rows, rows.len() as u64);
                let (mut ids, mut classes) = (vec![0; rows.len() * 4], vec![9; rows.len() * 2]);
                let report = plan.gather(&sources, &mut ids, Some(&mut classes)).unwrap();
                assert_eq!(report.cells_lost, 0);
                for (row, &number) in rows.iter().enumerate() {
                    for layer in 0..2 {
                        let cell = layer * rows.len() + row;
                        assert_eq!(
                            PlanClass::of(classes[cell].into()) == PlanClass::Valid,
                            number >= 0
                        );
                        if number >= 0 {
                            let (sample, token) = tokens[number as usize];
                            let expected =
                                [0, 1].map(|column| routed(sample, token, 1 + 2 * layer, column));
                            assert_eq!(ids[cell * 2..cell * 2 + 2], expected);
                        }
                    }
                }
                let mut packed = vec![0; shape.packed_bytes.div_ceil(8) as usize];
                plan.pack(&sources, &mut packed).unwrap();
                let (mut again, mut again_classes) = (vec![1; ids.len()], vec![8; classes.len()]);
                plan.unpack_on_host(&packed, &mut again, Some(&mut again_classes)).unwrap();
                assert!(ids == again && classes == again_classes);
                assert_eq!(
                    plan.ranges().unwrap().iter().map(|range| range.rows).sum::<u64>(),
                    shape.rows_needed
                );
            }
        }
    }
}

/// What small plans with holes gather, cell by cell.
#[test]
fn the_golden_cells_are_gathered() {
    let path = format!("{}/../../../tests/plan/golden/gathers.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 5);
    fn all<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
        let number = |n: &Value| T::try_from(n.as_i64().unwrap()).ok().unwrap();
        value.as_array().unwrap().iter().map(number).collect()
    }
    for case in cases {
        let (k, experts) = (number(case, "k") as usize, number(case, "experts") as usize);
        let valid: Vec<Vec<u8>> = case["valid"].as_array().unwrap().iter().map(all).collect();
        let weighted: Vec<Vec<u8>> = case["weighted"].as_array().unwrap().iter().map(all).collect();
        let routings: Vec<Routing> = valid
            .iter()
            .enumerate()
            .map(|(sample, bits)| {
                let at = |i: usize| {
                    ((977 * sample + 31 * (i / k / 5) + 7 * (i / k % 5) + i % k) % experts) as u8
                };
                let ids: Vec<u8> = (0..bits.len() * 5 * k).map(at).collect();
                let weights: Vec<f32> = (0..bits.len() * 5 * k)
                    .map(|i| {
                        let (token, layer, column) = (i / k / 5, i / k % 5, i % k);
                        (1000 * sample + 100 * token + 10 * layer + column + 1) as f32
                    })
                    .collect();
                let mut arrays =
                    Arrays::new(5, k as u32, 0, bits.len() as u64).experts(experts as u32);
                arrays = arrays.weights(WeightsType::F32);
                if !bits.is_empty() {
                    let segment = ArraySegment::new(0, bits.len() as u64);
                    arrays = arrays.segment(
                        segment
                            .ids(&ids[..])
                            .validity(bits)
                            .weights(&weights[..])
                            .weights_validity(&weighted[sample]),
                    );
                }
                Routing::import(&arrays, Trust::None).unwrap()
            })
            .collect();
        let sources: Vec<(u64, &Routing)> =
            routings.iter().enumerate().map(|(i, r)| (i as u64, r)).collect();
        let context = match case["context"].as_str().unwrap() {
            "zigzag" => PlanContext::Zigzag,
            "contiguous" => PlanContext::Contiguous,
            _ => PlanContext::None,
        };
        let parallel = case["sequence_parallel"].as_bool().unwrap();
        let tensor_ranks = if parallel { number(case, "tensor_size") as u32 } else { 1 };
        let layers: Vec<i32> = all(&case["layers"]);
        for (rank, expected) in case["ranks"].as_array().unwrap().iter().enumerate() {
            let rank = rank as u32;
            let mut config = PlanConfig::new(
                all::<u64>(&case["lengths"]),
                layers.len() as u32,
                k as u32,
                experts as u32,
            )
            .layer_map(layers.clone())
            .needed(all::<u64>(&case["needed"]))
            .context(context, number(case, "context_size") as u32, rank / tensor_ranks)
            .expert_parallel(number(case, "expert_parallel") as u32)
            .align(number(case, "align"))
            .order(if case["order"] == "row_major" { Order::RowMajor } else { Order::LayerMajor })
            .fill(case["fill"].as_i64().map_or(PlanFill::Balanced, PlanFill::Value))
            .lost(PlanLost::Mark(case["lost"].as_i64().unwrap()));
            if parallel {
                config = config.sequence_parallel(tensor_ranks, rank % tensor_ranks);
            }
            if case["layout"] == "padded_right" {
                config = config.layout(PlanLayout::PaddedRight);
            }
            let plan = config.create::<i64>().unwrap();
            let (wanted, classes): (Vec<i64>, Vec<u8>) =
                (all(&expected["ids"]), all(&expected["classes"]));
            let (mut ids, mut found) = (vec![99; wanted.len()], vec![9; classes.len()]);
            let report = plan.gather(&sources, &mut ids, Some(&mut found)).unwrap();
            assert_eq!(
                (ids, found, report.cells_lost),
                (wanted, classes, number(expected, "cells_lost"))
            );
            let wanted: Vec<f32> =
                all::<i32>(&expected["weights"]).into_iter().map(|weight| weight as f32).collect();
            let mut weights = vec![99.0f32; wanted.len()];
            let missing = plan.gather_weights(&sources, -1.0, &mut weights).unwrap();
            assert_eq!((weights, missing), (wanted, number(expected, "cells_unweighted")));
        }
    }
}

/// What layers with rules of their own gather, pack and give back: tests/plan/golden/fewer.json.
#[test]
fn the_golden_cells_with_fewer_experts_are_gathered_and_scattered() {
    let path = format!("{}/../../../tests/plan/golden/fewer.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    fn all<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
        let number = |n: &Value| T::try_from(n.as_i64().unwrap()).ok().unwrap();
        value.as_array().unwrap().iter().map(number).collect()
    }
    for case in cases.as_array().unwrap() {
        let (layers, visits): (Vec<i32>, Vec<u32>) = (all(&case["layers"]), all(&case["visits"]));
        let (layer_k, layer_min_k): (Vec<u32>, Vec<u32>) =
            (all(&case["layer_k"]), all(&case["layer_min_k"]));
        let (k, experts) = (number(case, "k") as usize, number(case, "experts") as u32);
        let mut routings = Vec::new();
        for rows in case["cells"].as_array().unwrap() {
            let rows = rows.as_array().unwrap();
            let (mut ids, mut validity) = (Vec::<u8>::new(), Vec::<u8>::new());
            for row in rows {
                let mut valid = 0;
                for (layer, cell) in row.as_array().unwrap().iter().enumerate() {
                    let cell: Option<Vec<u8>> = cell.is_array().then(|| all(cell));
                    valid |= u8::from(cell.is_some()) << layer;
                    let mut cell = cell.unwrap_or_default();
                    cell.resize(k, u8::MAX);
                    ids.extend(cell);
                }
                validity.push(valid);
            }
            let mut arrays = Arrays::new(layers.len() as u32, k as u32, 0, rows.len() as u64)
                .experts(experts)
                .layer_map(&layers)
                .layer_visit(&visits)
                .layer_k(&layer_k)
                .layer_min_k(&layer_min_k);
            if !rows.is_empty() {
                let segment = ArraySegment::new(0, rows.len() as u64);
                arrays = arrays.segment(segment.ids(&ids[..]).validity(&validity));
            }
            let routing = Routing::import(&arrays, Trust::None).unwrap();
            let view = routing.view().unwrap();
            assert_eq!((view.layer_k(), view.layer_min_k()), (&layer_k[..], &layer_min_k[..]));
            assert_eq!(view.layer_visit(), visits);
            for (row, expected) in view.iter().zip(rows) {
                for (layer, cell) in expected.as_array().unwrap().iter().enumerate() {
                    let found = row.experts(layer as u32).map(|ids| ids.iter().collect::<Vec<_>>());
                    assert_eq!(found, cell.is_array().then(|| all::<u16>(cell)));
                }
            }
            routings.push(routing);
        }
        let sources: Vec<(u64, &Routing)> =
            routings.iter().enumerate().map(|(i, r)| (i as u64, r)).collect();
        let plan =
            PlanConfig::new(all::<u64>(&case["lengths"]), layers.len() as u32, k as u32, experts)
                .layer_map(layers)
                .layer_visit(visits)
                .layer_k(layer_k)
                .layer_min_k(layer_min_k)
                .none(case["none"].as_i64().unwrap())
                .order(if case["order"] == "row_major" {
                    Order::RowMajor
                } else {
                    Order::LayerMajor
                })
                .fill(case["fill"].as_i64().map_or(PlanFill::Balanced, PlanFill::Value))
                .lost(PlanLost::Mark(case["lost"].as_i64().unwrap()))
                .create::<i64>()
                .unwrap();
        let (wanted, classes): (Vec<i64>, Vec<u8>) = (all(&case["ids"]), all(&case["classes"]));
        let (mut ids, mut found) = (vec![99; wanted.len()], vec![9; classes.len()]);
        let report = plan.gather(&sources, &mut ids, Some(&mut found)).unwrap();
        assert_eq!((&ids, &found), (&wanted, &classes));
        assert_eq!(report.cells_lost, number(case, "cells_lost"));
        let mut packed = vec![0; plan.describe().unwrap().packed_bytes.div_ceil(8) as usize];
        plan.pack(&sources, &mut packed).unwrap();
        ids.fill(99);
        plan.unpack_on_host(&packed, &mut ids, None).unwrap();
        assert_eq!(ids, wanted);
        let scattered = plan.scatter(&ids, Some(&found)).unwrap();
        for (routing, back) in routings.iter().zip(scattered) {
            let copy = |of: &Routing| of.to_vec::<i64>(&CopyOptions::new()).unwrap().ids;
            assert!(copy(&back).starts_with(&copy(routing)));
        }
    }
}

#[test]
fn what_is_gathered_is_scattered_and_tokens_go_the_same_way() {
    let plan =
        PlanConfig::new([6, 4], 2, 2, 256).layer_map([0, 2]).align(4).create::<i16>().unwrap();
    let (mut ids, mut classes) = (vec![0; 12 * 4], vec![0; 12 * 2]);
    let first = routing(0, 5, 3);
    let report = plan.gather(&[(0, &first)], &mut ids, Some(&mut classes)).unwrap();
    assert_eq!(
        (report.rows_valid, report.rows_lost, report.rows_not_needed, report.rows_padding),
        (5, 3, 2, 2)
    );
    assert_eq!(ids[8 * 4], -1);
    let back = plan.scatter(&ids, Some(&classes)).unwrap();
    assert_eq!(back.iter().map(|r| r.view().unwrap().rows()).collect::<Vec<_>>(), [6, 4]);
    let mut sent = [0u16; 12];
    plan.gather_values(&[Some(&[1, 2, 3, 4, 5, 6]), Some(&[7, 8, 9, 10])], 0, &mut sent).unwrap();
    assert_eq!(sent, [1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10]);
    assert_eq!(
        plan.gather_values(&[Some(&[1]), None], 0, &mut sent).unwrap_err().kind(),
        ErrorKind::ShapeMismatch
    );
    assert_eq!(plan.scatter(&ids[1..], None).unwrap_err().kind(), ErrorKind::Argument);
    assert_eq!(
        plan.gather(&[(2, &first)], &mut ids, None).unwrap_err().kind(),
        ErrorKind::OutOfRange
    );
    assert_eq!(
        plan.unpack_on_host(&[0; 4096], &mut ids, None).unwrap_err().kind(),
        ErrorKind::State
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let config = PlanConfig::new([3, 4], 2, 2, 300);
    assert_eq!(config.create::<u8>().unwrap_err().kind(), ErrorKind::DType);
    assert_eq!(
        config.clone().needed([1]).create::<i64>().unwrap_err().kind(),
        ErrorKind::ShapeMismatch
    );
    let odd = config.context(PlanContext::Zigzag, 2, 0).align(1).create::<i64>().unwrap_err();
    assert!(
        odd.kind() == ErrorKind::Argument && odd.message().contains("not a multiple of 4"),
        "{odd}"
    );
}

#[test]
fn a_slice_has_the_rows_and_no_others() {
    let whole = routing(1, 9, 2);
    let data = whole.serialize().unwrap();
    let header = serialized_info(&data).unwrap().header_bytes as usize;
    let cut = slice_serialized(&data[..header], (3..7).into()).unwrap();
    assert_eq!(cut.join(&data, &[]).unwrap(), whole.slice(3..7).unwrap().serialize().unwrap());
    assert_eq!(slice_serialized(&data, (8..10).into()).unwrap_err().kind(), ErrorKind::OutOfRange);
}
