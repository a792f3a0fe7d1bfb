//! Replays the conformance vectors through the crate: every call of every vector, with everything
//! that tests/vectors/README.md says is compared.
//!
//! The folder is `ROUTECAP_VECTORS`, or the one of the source tree. A call that is wrong in a way
//! that the crate's types rule out is made through the raw layer, if the vector marks it as `raw`;
//! otherwise it fails.

mod arguments;
#[rustfmt::skip]
mod calls;
mod fields;
mod raw;
mod replay;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use serde_json::Value;

#[test]
fn every_vector_is_answered_as_the_model_answers_it() {
    // The vectors say what becomes of slips that are forgiven. SAFETY: this is the only test of the
    // program.
    unsafe { std::env::remove_var("ROUTECAP_CHECKED") };
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/vectors");
    let folder = std::env::var_os("ROUTECAP_VECTORS").map_or(here, PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("the folder of the vectors")
        .map(|entry| entry.unwrap().path())
        .collect();
    // abi.json has what only C can get wrong: sizes of structs and NULL.
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "json")
            && path.file_stem().is_some_and(|stem| stem != "abi")
    });
    files.sort();

    let mut failures = Vec::new();
    let (mut vectors, mut calls) = (0, 0);
    for path in &files {
        let file: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON");
        for vector in file["vectors"].as_array().expect("vectors") {
            vectors += 1;
            calls += vector["calls"].as_array().expect("calls").len();
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| replay::vector(vector))) {
                let text =
                    panic.downcast::<String>().map_or_else(|_| "a panic".to_string(), |text| *text);
                failures.push(format!(
                    "{}: {}: {text}",
                    path.file_name().unwrap().display(),
                    vector["name"]
                ));
            }
        }
    }
    println!("{vectors} vectors, {calls} calls, {} failures", failures.len());
    assert!(vectors > 0, "no vectors in {}", folder.display());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
