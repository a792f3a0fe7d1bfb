//! The library's lines in a closure.

mod support;

use std::sync::{Arc, Mutex};

use routecap::*;
use support::config;

#[test]
fn a_closure_hears_what_happens_and_is_dropped_when_it_is_replaced() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    set_log(LogLevel::Debug, move |level, line| {
        assert_eq!(unset_log().unwrap_err().kind(), ErrorKind::State);
        kept.lock().unwrap().push((level, line.to_owned()));
        if line.contains("UNKNOWN_STEP") {
            panic!("a panic in a hook ends there");
        }
    })
    .unwrap();
    let (capturer, forward) = config().create().unwrap();
    assert_eq!(capturer.poll(Step(7)).unwrap_err().kind(), ErrorKind::UnknownStep);
    drop((capturer, forward));
    unset_log().unwrap();
    let heard = Arc::into_inner(heard).expect("the closure was dropped").into_inner().unwrap();
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert_eq!(heard[0].0, LogLevel::Info);
    assert!(heard[0].1.starts_with("capturer 1 made: owner on host"), "{}", heard[0].1);
    assert_eq!(heard[1].0, LogLevel::Debug);
    assert!(
        heard[1]
            .1
            .starts_with("routecap_step_poll: ROUTECAP_ERR_UNKNOWN_STEP: step 7 was not issued"),
        "{}",
        heard[1].1
    );
    assert!(heard[2].1.starts_with("capturer 1 destroyed"), "{}", heard[2].1);
}
