//! The dump of a capturer.
#![cfg(feature = "experimental")]

mod support;

use support::config;

#[test]
fn a_dump_is_json_of_the_requests_that_fit() {
    let (capturer, _forward) = config().manual_progress(true).create().unwrap();
    let request = capturer.open().unwrap();
    let dump = capturer.dump(10).unwrap();
    assert!(dump.starts_with("{\"routecap\": \"1."), "{dump}");
    assert!(
        dump.contains(&format!("\"requests\": [{{\"request\": {}, \"rows\": 0", request.0)),
        "{dump}"
    );
    assert!(capturer.dump(0).unwrap().ends_with("\"requests\": []}"));
}
