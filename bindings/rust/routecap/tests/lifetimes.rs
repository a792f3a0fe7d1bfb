//! Who keeps what alive: drops in odd orders, lent memory, and that everything is given back.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use routecap::*;
use support::{Tokens, config, expect_rows, sequence, step};

/// Counts what Rust allocates.
struct Counting;
static ALLOCATED: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator, and a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Memory that counts how often it is dropped.
struct Lent(Vec<u8>, Arc<AtomicUsize>);
impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
impl Drop for Lent {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Tests of one process measure its memory: one at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn routings_outlive_request_forward_and_capturer() {
    let _alone = alone();
    let (capturer, mut forward) = config().create().unwrap();
    let routing = sequence(&capturer, &mut forward, 1, 20);
    let slice = routing.slice(5..15).unwrap();
    let clone = routing.clone();
    drop(capturer);
    drop(routing);
    expect_rows(&clone, 1, 0..20);
    drop(forward); // now the capturer is gone
    expect_rows(&slice, 1, 5..15);
    drop(clone);
    expect_rows(&slice, 1, 5..15);
}

#[test]
fn the_forward_path_keeps_the_capturer_and_the_other_way_round() {
    let _alone = alone();
    let (capturer, forward) = config().create().unwrap();
    drop(forward);
    let request = capturer.open().unwrap();
    assert_eq!(capturer.stats().unwrap().requests_open, 1);
    capturer.close(request).unwrap();

    let (capturer, mut forward) = config().create().unwrap();
    drop(capturer);
    let capturer = forward.capturer().clone();
    expect_rows(&sequence(&capturer, &mut forward, 2, 3), 2, 0..3);
}

#[test]
fn a_pending_routing_is_ready_after_the_capturer_is_gone() {
    let _alone = alone();
    let (capturer, mut forward) = config().manual_progress(true).create().unwrap();
    let request = capturer.open().unwrap();
    step(&capturer, &mut forward, &[Tokens { request, seed: 4, position: 0, count: 9 }]);
    let routing = capturer.finish(request, ALL).unwrap();
    assert_eq!(routing.poll().unwrap(), None);
    assert_eq!(routing.view().unwrap_err().kind(), ErrorKind::NotReady);
    drop((capturer, forward));
    assert_eq!(routing.poll().unwrap(), Some(Completeness::Complete));
    expect_rows(&routing, 4, 0..9);
}

#[test]
fn routings_are_dropped_on_any_thread_in_any_order() {
    let _alone = alone();
    let (capturer, mut forward) = config().create().unwrap();
    let mut routings: Vec<Routing> =
        (0..24).map(|seed| sequence(&capturer, &mut forward, seed, 30)).collect();
    let parts: Vec<(u64, Routing)> =
        (0..24).map(|i| (i as u64, routings[i].slice(10..).unwrap())).collect();
    let handle = std::thread::spawn(move || {
        routings.reverse();
        routings.swap_remove(5);
        drop(routings);
    });
    std::thread::scope(|scope| {
        for chunk in parts.chunks(6) {
            scope.spawn(move || {
                chunk.iter().for_each(|(seed, part)| expect_rows(part, *seed, 10..30))
            });
        }
    });
    handle.join().unwrap();
    drop(parts);
    assert_eq!(capturer.stats().unwrap().bytes_in_use, 0);
}

#[test]
fn a_view_shows_the_same_rows_while_the_request_goes_on() {
    let _alone = alone();
    let (capturer, mut forward) = config().create().unwrap();
    let request = capturer.open().unwrap();
    let first =
        step(&capturer, &mut forward, &[Tokens { request, seed: 8, position: 0, count: 10 }]);
    let _ = capturer.finalize(first).unwrap();
    let routing = capturer.extract(request, .., Extract::Share).unwrap();
    let view = routing.view().unwrap();
    for position in 10..60 {
        step(&capturer, &mut forward, &[Tokens { request, seed: 8, position, count: 1 }]);
    }
    capturer.truncate(request, 0).unwrap();
    drop((capturer, forward));
    for row in view.iter() {
        assert_eq!(row.tag(), 7);
        for (layer, cell) in row.cells().enumerate() {
            let ids: Vec<i32> = cell.expect("a valid cell").iter().map(i32::from).collect();
            assert_eq!(ids, support::routed(8, row.position(), layer as u32));
        }
    }
    assert_eq!(view.iter().count(), 10);
    assert!(view.row(10).is_none());
}

#[test]
fn lent_memory_is_dropped_once_when_nobody_reads_it_any_more() {
    let _alone = alone();
    let (capturer, mut forward) = config().create().unwrap();
    let bytes = sequence(&capturer, &mut forward, 6, 40).serialize().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let routing =
        Routing::deserialize_lent(Lent(bytes.clone(), drops.clone()), Trust::None).unwrap();
    let slice = routing.slice(7..9).unwrap();
    drop(routing);
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    std::thread::spawn(move || expect_rows(&slice, 6, 7..9)).join().unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 1);

    // A call that fails gives it back at once.
    let error =
        Routing::deserialize_lent(Lent(vec![0; 100], drops.clone()), Trust::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format);
    assert_eq!(drops.load(Ordering::SeqCst), 2);

    // Bytes that are not aligned are copied, and given back too.
    let mut shifted = vec![0u8; 1];
    shifted.extend_from_slice(&bytes);
    struct Behind(Lent);
    impl AsRef<[u8]> for Behind {
        fn as_ref(&self) -> &[u8] {
            &self.0.0[1..]
        }
    }
    let routing =
        Routing::deserialize_lent(Behind(Lent(shifted, drops.clone())), Trust::Ids).unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 3);
    expect_rows(&routing, 6, 0..40);

    // Arrays likewise: rows that lie as the library's (ids, validity, zeros) are read in place...
    fn records(lent: &Lent) -> Arrays<'_> {
        let segment = ArraySegment::new(0, 2).ids(&lent.0).validity(&lent.0[2..]);
        Arrays::new(1, 2, 0, 2).experts(8).row_stride(4).segment(segment)
    }
    let lent = Lent(vec![1, 2, 1, 0, 3, 4, 1, 0], drops.clone());
    assert!(Routing::import(&records(&lent), Trust::None).is_ok());
    let routing = Routing::import_lent(lent, records, Trust::None).unwrap();
    assert_eq!(routing.to_vec::<u8>(&CopyOptions::new().fill(0)).unwrap().ids, [1, 2, 3, 4]);
    assert_eq!(drops.load(Ordering::SeqCst), 3);
    drop(routing);
    assert_eq!(drops.load(Ordering::SeqCst), 4);
    let short = Lent(vec![1, 2, 1, 0, 3, 4, 1], drops.clone());
    assert!(Routing::import_lent(short, records, Trust::None).is_err());
    assert_eq!(drops.load(Ordering::SeqCst), 5);

    // ... and others are copied, and given back at once.
    let routing = Routing::import_lent(
        Lent(vec![1, 2, 3, 4], drops.clone()),
        |lent| Arrays::new(1, 2, 0, 2).experts(8).segment(ArraySegment::new(0, 2).ids(&lent.0)),
        Trust::None,
    )
    .unwrap();
    assert_eq!(drops.load(Ordering::SeqCst), 6);
    assert_eq!(routing.to_vec::<u8>(&CopyOptions::new().fill(0)).unwrap().ids, [1, 2, 3, 4]);
}

#[test]
fn a_request_that_is_guarded_ends_with_its_guard() {
    let _alone = alone();
    let (capturer, mut forward) = config().create().unwrap();
    let open = |capturer: &Capturer| capturer.stats().unwrap().requests_open;
    let guard = capturer.open_guarded(Policy::Replace).unwrap();
    let id = guard.id();
    assert_eq!(open(&capturer), 1);
    drop(guard);
    assert_eq!(open(&capturer), 0);
    assert_eq!(capturer.close(id).unwrap_err().kind(), ErrorKind::UnknownRequest);

    let guard = capturer.open_guarded(Policy::Keep).unwrap();
    step(
        &capturer,
        &mut forward,
        &[Tokens { request: guard.id(), seed: 5, position: 0, count: 4 }],
    );
    let routing = guard.finish(4).unwrap();
    let _ = routing.wait().unwrap();
    expect_rows(&routing, 5, 0..4);

    let id = capturer.open_guarded(Policy::Keep).unwrap().into_id();
    assert_eq!(open(&capturer), 1);
    capturer.close(id).unwrap();
}

#[test]
fn items_of_batches_give_back_what_nobody_takes() {
    let _alone = alone();
    let (capturer, mut forward) = config().manual_progress(true).create().unwrap();
    let mut requests = [RequestId::NONE; 3];
    capturer.open_batch(&mut requests, Policy::Keep).unwrap();
    let batch: Vec<Tokens> = requests
        .iter()
        .enumerate()
        .map(|(i, request)| Tokens { request: *request, seed: i as u64, position: 0, count: 5 })
        .collect();
    let last = step(&capturer, &mut forward, &batch);
    let _ = capturer.finalize(last).unwrap();
    let mut items: Vec<ExtractItem> = requests
        .iter()
        .map(|r| ExtractItem::new(*r, .., Extract::Share, Strictness::Strict))
        .collect();
    assert!(capturer.extract_batch(&mut items).unwrap());
    assert!(capturer.extract_batch(&mut items).unwrap()); // the first routings are freed
    for (seed, item) in items.iter_mut().enumerate() {
        assert_eq!(item.result(), Ok(Completeness::Complete));
        expect_rows(&item.take().unwrap(), seed as u64, 0..5);
        assert!(item.take().is_none());
    }
    let mut ends: Vec<FinishItem> = [requests[0], RequestId(12345), requests[2]]
        .map(|request| FinishItem::new(request, 5))
        .into();
    assert!(!capturer.finish_batch(&mut ends).unwrap());
    assert_eq!(ends[1].result(), Err(ErrorKind::UnknownRequest));
    assert!(ends[1].take().is_none());
    let last = ends[2].take().unwrap();
    assert!(last.wait().unwrap().is_complete());
    expect_rows(&last, 2, 0..5);
    drop(last);
    let _ = ends[0].take().unwrap().wait().unwrap();
    drop((items, ends));
    let mut status = [ItemStatus::default(); 2];
    assert!(!capturer.close_batch_into(&requests[..2], &mut status).unwrap());
    assert_eq!((status[0].result(), status[1].result()), (Err(ErrorKind::UnknownRequest), Ok(())));
    capturer.progress().unwrap();
    assert_eq!(capturer.stats().unwrap().bytes_in_use, 0);
}

#[test]
fn ten_thousand_cycles_leave_memory_as_it_was() {
    let _alone = alone();
    let cycles = |capturer: &Capturer, forward: &mut Forward, count: u64| {
        for seed in 0..count {
            let routing = sequence(capturer, forward, seed, 16);
            let (prompt, generated) = routing.split(10, ALL).unwrap();
            let bytes = generated.serialize().unwrap();
            let again = Routing::deserialize_lent(bytes, Trust::None).unwrap();
            let merged = Routing::merge([&prompt, &again]).unwrap();
            if seed % 1000 == 0 {
                expect_rows(&merged, seed, 0..16);
            }
        }
    };
    let (capturer, mut forward) = config().create().unwrap();
    cycles(&capturer, &mut forward, 500);
    let (allocated, resident) = (ALLOCATED.load(Ordering::Relaxed), resident_bytes());
    cycles(&capturer, &mut forward, 10_000);
    let leaked = ALLOCATED.load(Ordering::Relaxed) - allocated;
    assert!(leaked < 10_000, "{leaked} bytes of Rust's in 10,000 cycles");
    assert_eq!(capturer.stats().unwrap().bytes_in_use, 0);
    // A routing that leaks each time would take 1 KB and a page of 64 KiB.
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 4 << 20, "{grown} bytes more");

    // And whole capturers.
    for seed in 0..200 {
        let (capturer, mut forward) = config().create().unwrap();
        let kept = sequence(&capturer, &mut forward, seed, 16);
        drop((capturer, forward));
        drop(kept);
    }
    let leaked = ALLOCATED.load(Ordering::Relaxed) - allocated;
    assert!(leaked < 10_000, "{leaked} bytes of Rust's in 200 capturers");
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 8 << 20, "{grown} bytes more");
}
