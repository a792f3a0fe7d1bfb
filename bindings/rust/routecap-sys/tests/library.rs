//! The library that was found is the one that the bindings were made for.

use std::ffi::CStr;

use routecap_sys::*;

#[test]
fn the_function_table_is_complete_and_of_this_version() {
    // SAFETY: never fails, and gives a table in static storage that has what this version has.
    let api = unsafe { routecap_get_api(ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR).as_ref() }
        .expect("a table");
    assert_eq!((api.major, api.minor), (ROUTECAP_VERSION_MAJOR, ROUTECAP_VERSION_MINOR));
    assert!(api.size >= size_of::<routecap_api>());
    // Behind its three numbers the table is functions alone.
    let functions = std::mem::offset_of!(routecap_api, version);
    let entries = (std::ptr::from_ref(api).cast::<u8>()).wrapping_add(functions).cast::<usize>();
    for i in 0..(size_of::<routecap_api>() - functions) / size_of::<usize>() {
        // SAFETY: the table is as large as it was found to be above.
        assert_ne!(unsafe { entries.add(i).read() }, 0, "entry {i}");
    }
}

#[test]
fn constants_have_the_types_of_what_takes_them() {
    let _: (i32, u32, u64, u32) =
        (ROUTECAP_ERR_FORMAT, ROUTECAP_SPAN_SPECULATIVE, ROUTECAP_ROWS_ALL, ROUTECAP_MAX_K);
    assert_eq!(ROUTECAP_ROWS_ALL, u64::MAX);
    assert_eq!(ROUTECAP_ROWS_LANDED, u64::MAX - 1);
    // SAFETY: never fails; the text is static.
    let name = unsafe { CStr::from_ptr(routecap_status_name(ROUTECAP_ERR_FORMAT)) };
    assert_eq!(name, c"ROUTECAP_ERR_FORMAT");
}
