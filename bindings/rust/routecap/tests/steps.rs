//! What becomes of a step is told where it is issued.

mod support;

use routecap::*;
use support::{ROWS, config, routed};

/// A forward pass of one token, and its issue.
fn issue(forward: &mut Forward, request: RequestId, position: u64) -> Result<Issued> {
    forward.begin(1, Stream::HOST)?;
    for layer in 0..support::LAYERS {
        forward.record(layer, &Source::new(&routed(1, position, layer), 1), Stream::HOST)?;
    }
    forward.snapshot(Stream::HOST)?;
    forward.issue(&[Span::new(request, position, 0, 1)], &IssueOptions::new(), Stream::HOST)
}

#[test]
fn a_lost_step_is_an_error_for_those_who_want_a_step_and_a_ticket_for_those_who_go_on() {
    // Nobody files: with one slot the second step finds none free.
    let (capturer, mut forward) =
        config().slots(1).manual_progress(true).may_lose(true).create().unwrap();
    let request = capturer.open().unwrap();
    let first = issue(&mut forward, request, 0).unwrap();
    assert_eq!(
        (first.step(), first.ticket(), first.filing(), first.is_lost()),
        (Ok(Step(1)), Step(1), Filing::Whole, false)
    );

    let second = issue(&mut forward, request, 1).unwrap();
    assert_eq!((second.ticket(), second.filing(), second.is_lost()), (Step(2), Filing::Lost, true));
    let error = second.step().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(
        error.to_string().starts_with("ROUTECAP_LOST: step 2 is lost: this step was issued while"),
        "{error}"
    );
    assert_eq!(capturer.poll(second.ticket()).unwrap(), Landing::Lost);
    assert!(last_message().contains("in flight"), "{}", last_message());

    let routing = capturer.finish(request, 2).unwrap();
    assert_eq!(routing.wait().unwrap(), Completeness::Incomplete);
    let missing = routing.missing().unwrap();
    assert_eq!(
        (missing.len(), missing[0].positions(), missing[0].reason()),
        (1, 1..2, Reason::Lost)
    );
    let reasons: Vec<_> =
        routing.view().unwrap().segments().map(|s| (s.positions(), s.reason())).collect();
    assert_eq!(reasons, [(0..1, None), (1..2, Some(Reason::Lost))]);
}

#[test]
fn a_step_of_which_a_span_was_skipped_is_a_step() {
    let (capturer, mut forward) = config().create().unwrap();
    let request = capturer.open().unwrap();
    capturer.close(request).unwrap();
    let issued = issue(&mut forward, request, 0).unwrap();
    assert_eq!(
        (issued.step(), issued.filing(), issued.is_lost()),
        (Ok(Step(1)), Filing::Partial, false)
    );
}

#[test]
fn a_step_that_cannot_be_issued_has_no_ticket() {
    let (capturer, mut forward) = config().create().unwrap();
    let span = Span::new(capturer.open().unwrap(), 0, 0, ROWS + 1);
    let error = forward.issue(&[span], &IssueOptions::new(), Stream::HOST).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
}
