//! Messages of the wire from Rust: the golden files of the projects, and what only this layer can
//! get wrong.

use routecap::{
    CopyOptions, DType, ErrorKind, Routing, WireDecoder, WireFacts, WireFormat, WireHint,
    WireOptions,
};

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../../tests/wire/golden/{name}", env!("CARGO_MANIFEST_DIR")))
        .unwrap()
}

// The ids that tests/wire/golden/README.md says.
fn expected(rows: u64, columns: std::ops::Range<u64>, k: u64, experts: u64) -> Vec<i64> {
    (0..rows)
        .flat_map(|r| {
            columns
                .clone()
                .flat_map(move |c| (0..k).map(move |i| ((5 * r + 3 * c + i) % experts) as i64))
        })
        .collect()
}

#[test]
fn the_projects_messages_arrive_whole_and_in_pieces() {
    for (file, writer, rows, columns, k, experts, dense) in [
        ("vllm-8.npy.b64", "vllm", 6, 4, 8, 128, true),
        ("vllm-16.npy.b64", "vllm", 6, 4, 8, 512, true),
        ("sglang-0.5.23.b64", "sglang", 9, 3, 8, 256, false),
        ("nemo-rl-16.nrlre1", "nemo-rl", 8, 3, 8, 512, false),
        ("megatron-core-0.19.2.lists.json", "megatron", 5, 4, 6, 64, false),
        ("prime-rl.routes.json", "prime-rl", 6, 3, 8, 512, false),
    ] {
        let bytes = golden(file);
        let format = WireFormat::find(writer).unwrap();
        let mut hint = WireHint::new(experts as u32).columns(columns as u32).k(k as u32).rows(rows);
        if dense {
            hint = hint.layer_map([1, 2, 3]);
        }
        let ids = expected(rows, u64::from(dense)..columns, k, experts);
        let (routing, report) = Routing::from_wire(&bytes, format, &hint).unwrap();
        let mut copied = vec![0i64; ids.len()];
        assert!(routing.copy_to(&mut copied, None, &CopyOptions::new()).unwrap().is_complete());
        assert_eq!(copied, ids, "{file}");
        assert_eq!((report.rows, report.columns_left_out), (rows, u32::from(dense)));
        let mut decoder = WireDecoder::new(format, &hint).unwrap();
        bytes.chunks(11).for_each(|piece| decoder.write(piece).unwrap());
        let (again, same) = decoder.finish().unwrap();
        assert_eq!((again.serialize().unwrap(), same), (routing.serialize().unwrap(), report));
    }
}

#[test]
fn nothing_is_lost_without_leave() {
    let (routing, _) =
        Routing::from_wire(b"[[[1,2]],[[-1,-1]]]", WireFormat::Lists, &WireHint::new(8).first(4))
            .unwrap();
    let error = routing.to_wire(&WireOptions::new(WireFormat::Npy)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lossy);
    assert!(error.message().contains("first, validity, reasons"), "{error}");
    let facts = WireFacts::FIRST | WireFacts::REASONS;
    let options = WireOptions::new(WireFormat::Nrlre1).dtype(DType::I16).allow(facts);
    let (bytes, report) = routing.to_wire(&options).unwrap();
    assert_eq!(bytes, b"nrlre1:int16:2x1x2:AQACAP////8=");
    assert_eq!(report.lost, facts);
    assert_eq!(format!("{facts:?}"), "WireFacts(FIRST | REASONS)");
}

#[test]
fn a_map_of_another_length_than_the_layers_is_refused() {
    let hint = WireHint::new(8).layer_map([0, 1]).layer_experts([8, 8, 8]);
    assert_eq!(
        Routing::from_wire(b"[]", WireFormat::Lists, &hint).unwrap_err().kind(),
        ErrorKind::ShapeMismatch
    );
    assert_eq!(WireFormat::find("no\0name").unwrap_err().kind(), ErrorKind::Argument);
    assert_eq!(WireFormat::NpyBase64.describe().unwrap().aliases, "vllm");
}
