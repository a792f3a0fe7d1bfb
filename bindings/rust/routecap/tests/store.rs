//! Rows of prefixes: published, adopted, moved.

mod support;

use routecap::*;
use support::{Tokens, config, refused, routed_rows, step};

fn slots(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn small() -> StoreConfig {
    StoreConfig { block_rows: 4, key_bytes: 8, ..StoreConfig::default() }
}

#[test]
fn rows_of_a_prefix_come_from_the_request_that_computed_them() {
    let (capturer, mut forward) = config().create().unwrap();
    let store = small().create(&config()).unwrap();
    let (a, b, c) = (capturer.open().unwrap(), capturer.open().unwrap(), capturer.open().unwrap());
    step(&capturer, &mut forward, &[Tokens { request: a, seed: 1, position: 0, count: 8 }]);
    capturer.publish(a, &store, 0, &slots(&[1, 2]), 0).unwrap();
    let found = capturer.adopt(b, &store, 0, &slots(&[1, 2, 3]), 0).unwrap();
    assert_eq!((found.rows, found.found, found.not_published), (8, 2, 1));
    let of_many = capturer
        .adopt_batch(&store, &[Prefix { request: c, first: 4, keys: &slots(&[2]) }], 0)
        .unwrap();
    assert_eq!((of_many[0].0.found, of_many[0].1.result()), (1, Ok(())));
    let published = capturer
        .publish_batch(
            &store,
            &[
                Prefix { request: a, first: 0, keys: &slots(&[3]) },
                Prefix { request: a, first: 8, keys: &slots(&[4]) },
            ],
            0,
        )
        .unwrap();
    assert_eq!(
        (published[0].result(), published[1].result()),
        (Ok(()), Err(ErrorKind::OutOfRange))
    );
    let routing = capturer.finish(b, 8).unwrap();
    assert_eq!(routing.wait().unwrap(), Completeness::Complete);
    let mut ids = vec![0i32; routed_rows(1, 0..8).len()];
    assert_eq!(
        routing.copy_to(&mut ids, None, &CopyOptions::new()).unwrap(),
        Completeness::Complete
    );
    assert_eq!(ids, routed_rows(1, 0..8));

    assert_eq!(store.retain(&slots(&[1, 9])).unwrap(), [0, sys::ROUTECAP_MISSING_NOT_PUBLISHED]);
    store.release(&slots(&[1])).unwrap();
    assert_eq!(store.evict(&slots(&[1, 9])).unwrap(), 1);
    store.advance(8).unwrap(); // the rows have the tag 7
    let (reasons, leading) = store.contains(&slots(&[2, 1]), 8).unwrap();
    assert_eq!(
        (reasons.as_slice(), leading),
        ([sys::ROUTECAP_MISSING_STALE, sys::ROUTECAP_MISSING_EVICTED].as_slice(), 0)
    );
    let counts = store.stats().unwrap();
    assert_eq!((counts.generation, counts.blocks_adopted), (8, 3));
}

#[test]
fn keys_continue() {
    let tokens: Vec<i32> = (1..9).collect();
    let whole = key_chain(b"model", &tokens, 4, 16).unwrap();
    assert_eq!(key_chain(&whole[..16], &tokens[4..], 4, 16).unwrap(), whole[16..]);
    refused(key_chain(b"", &tokens, 4, 65), ErrorKind::Argument, "key_bytes");
}
