//! A slip of shape is an error, never a row of something else.

mod support;

use routecap::*;
use support::{K, LAYERS};

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
    assert!(row.cell(LAYERS - 1).is_none());
    for read in [|row: Row<'_>| row.is_valid(LAYERS), |row: Row<'_>| row.cell(LAYERS).is_some()] {
        let said = std::panic::catch_unwind(|| read(row)).unwrap_err();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains(&format!("layer {LAYERS} of {LAYERS}")), "{said}");
        assert!(said.contains("captured"), "{said}");
    }
    assert_eq!(view.k(), K);
}
