//! What types promise: which may go to other threads, which have C's layout, and that every status
//! is a kind of error.

mod support;

use routecap::*;

fn send<T: Send>() {}
fn send_sync<T: Send + Sync>() {}

#[test]
fn values_may_move_between_threads_as_the_header_says() {
    send_sync::<Capturer>();
    send_sync::<Routing>();
    send_sync::<View<'static>>();
    send_sync::<Segment<'static>>();
    send_sync::<Row<'static>>();
    send_sync::<Config>();
    send_sync::<RequestGuard>();
    send_sync::<Error>();
    send_sync::<ExtractItem>();
    send_sync::<FinishItem>();
    send_sync::<AcceptItem<'static>>();
    send_sync::<Span>();
    send_sync::<Stream>();
    send_sync::<Source<'static>>();
    send_sync::<Router<'static>>();
    send::<Forward>();
    send::<Logits<'static>>();
    send::<Received<'static>>();
    // What makes the forward path's calls one thread's is that they take `&mut Forward`, and that
    // it is no `Clone`: see its documentation.
}

#[test]
fn a_number_that_only_a_later_header_has_is_kept() {
    assert_eq!(
        (IdSpace::of(99).value(), Provenance::of(99).value(), Reason::of(99).value()),
        (99, 99, 99)
    );
    assert_eq!(
        (Completeness::of(99).status(), Filing::of(99).status(), Landing::of(99).status()),
        (99, 99, 99)
    );
    assert_eq!(ErrorKind::of(-999).status(), -999);
    for known in 1..=10 {
        assert!(
            !matches!(Reason::of(known), Reason::Other(_)) && Reason::of(known).value() == known
        );
    }
    assert!(!Completeness::of(99).is_complete());
    for known in 0..2 {
        assert!(
            !matches!(IdSpace::of(known), IdSpace::Other(_)) && IdSpace::of(known).value() == known
        );
        assert!(
            !matches!(Provenance::of(known), Provenance::Other(_))
                && Provenance::of(known).value() == known
        );
    }
}

#[test]
fn arrays_of_structs_reach_the_library_as_they_are() {
    assert_eq!(size_of::<Span>(), size_of::<sys::routecap_span>());
    assert_eq!(size_of::<RequestId>(), size_of::<sys::routecap_request>());
    assert_eq!(size_of::<ItemStatus>(), size_of::<i32>());
    assert_eq!(size_of::<AcceptItem<'_>>(), size_of::<sys::routecap_accept_item>());
    let span = Span::new(RequestId(5), 1, 2, 3).device_positions(9).speculative();
    assert_eq!(
        (span.request(), span.position(), span.sink_row(), span.rows()),
        (RequestId(5), 1, 2, 3)
    );
    assert_eq!((span.position_end(), span.is_speculative()), (Some(9), true));
    assert_eq!(Span::new(RequestId(5), 1, 2, 3).position_end(), None);
}

#[test]
fn every_error_of_the_header_is_a_kind_with_its_name() {
    // The names come from the loaded library, so that one that this crate does not know is found.
    assert_eq!(ErrorKind::Lost.to_string(), "ROUTECAP_LOST"); // a success in C
    let mut known = 0;
    for status in -600..0 {
        let name = status_name(status);
        match ErrorKind::of(status) {
            ErrorKind::Other(_) => assert_eq!(name, "ROUTECAP_STATUS_UNKNOWN", "{status}"),
            kind => {
                assert_eq!(kind.status(), status);
                assert_eq!(kind.to_string(), name);
                known += 1;
            }
        }
    }
    assert_eq!(known, 35);
    assert_eq!(Error::from(ErrorKind::Capacity).to_string(), "ROUTECAP_ERR_CAPACITY");
}

#[test]
fn an_error_has_the_kind_and_the_text_of_the_call_that_failed() {
    let (capturer, mut forward) = support::config().create().unwrap();
    let error = forward.begin(support::ROWS + 1, Stream::HOST).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Capacity);
    assert!(error.message().contains("65"), "{error}");
    assert!(error.to_string().starts_with("ROUTECAP_ERR_CAPACITY: "), "{error}");
    let other = capturer.close(RequestId(99)).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::UnknownRequest);
    assert_ne!(other.message(), error.message());
    let boxed: Box<dyn std::error::Error + Send + Sync> = other.into();
    assert!(boxed.to_string().contains("ROUTECAP_ERR_UNKNOWN_REQUEST"));
}

#[test]
fn ranges_are_rows() {
    assert_eq!(Rows::from(..), Rows::new(0, ALL));
    assert_eq!(Rows::from(5..), Rows::new(5, ALL));
    assert_eq!(Rows::from(5..9), Rows::new(5, 4));
    assert_eq!(Rows::from(5..=9), Rows::new(5, 5));
    assert_eq!(Rows::from(..9), Rows::new(0, 9));
    #[allow(clippy::reversed_empty_ranges)] // what is asked here
    let reversed = Rows::from(9..5);
    assert_eq!(reversed, Rows::new(9, 0));
    assert_eq!(Rows::landed(3), Rows::new(3, LANDED));
}

#[test]
fn the_loaded_library_is_of_the_version_that_the_bindings_are() {
    assert_eq!(version() / 100, sys::ROUTECAP_VERSION_MAJOR * 100 + sys::ROUTECAP_VERSION_MINOR);
    let api = api().expect("a table");
    assert_eq!((api.major, api.minor), (sys::ROUTECAP_VERSION_MAJOR, sys::ROUTECAP_VERSION_MINOR));
    assert!(api.size >= size_of::<sys::routecap_api>());
    // SAFETY: never fails.
    assert_eq!(unsafe { api.version.expect("an entry")() }, version());
}
