//! What calls.rs makes of a vector: parameters by their types, and results.

use routecap::{
    Adoption, AppendReport, Completeness, Error, Landing, RequestId, Routing, Sequence, Stats,
    Step, status_name, sys,
};
use serde_json::Value;

use crate::fields::stats_object;
use crate::replay::{Call, Replay, reported};
use crate::value::object;

/// A parameter: what is said under its name.
pub trait Given {
    fn of(replay: &Replay, call: &Call<'_>, key: &str) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Given for $type {
            fn of(_: &Replay, call: &Call<'_>, key: &str) -> Self {
                call.input.number(key)
            }
        })*
    };
}
numbers!(u32, u64, i32, i64);

impl Given for RequestId {
    fn of(replay: &Replay, call: &Call<'_>, key: &str) -> Self {
        replay.request_named(call.input.get(key).unwrap_or(&Value::Null))
    }
}
impl Given for Step {
    fn of(_: &Replay, call: &Call<'_>, key: &str) -> Self {
        Step(call.input.number(key))
    }
}

impl Replay {
    pub fn given<T: Given>(&self, call: &Call<'_>, key: &str) -> T {
        T::of(self, call, key)
    }
}

impl Call<'_> {
    pub fn numbers(&self, key: &str) -> Vec<i32> {
        self.input.numbers(key).expect("an array")
    }

    /// Compares what a call has returned, and binds or compares what it delivered under the keys.
    pub fn delivered<T: Delivered>(
        &self,
        replay: &mut Replay,
        answer: Result<T, Error>,
        keys: &[&str],
    ) {
        if let Some(value) = self.answered(answer, T::status) {
            value.bind(replay, self, keys);
        }
    }
}

/// A result.
pub trait Delivered: Sized {
    /// The status that it stands for.
    fn status(&self) -> &'static str {
        "ROUTECAP_OK"
    }
    fn bind(self, replay: &mut Replay, call: &Call<'_>, keys: &[&str]);
}

impl Delivered for () {
    fn bind(self, _: &mut Replay, _: &Call<'_>, _: &[&str]) {}
}
impl Delivered for Landing {
    fn status(&self) -> &'static str {
        status_name(Landing::status(*self))
    }
    fn bind(self, _: &mut Replay, _: &Call<'_>, _: &[&str]) {}
}
impl Delivered for Option<Completeness> {
    fn status(&self) -> &'static str {
        self.map_or("ROUTECAP_PENDING", |ready| status_name(ready.status()))
    }
    fn bind(self, _: &mut Replay, _: &Call<'_>, _: &[&str]) {}
}
impl Delivered for RequestId {
    fn bind(self, replay: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        replay.bind_request(&call.out.0[keys[0]], self);
    }
}
impl Delivered for Routing {
    fn bind(self, replay: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        replay.bind_routing(call, keys[0], Some(self));
    }
}
impl Delivered for Sequence {
    fn bind(self, replay: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        replay.bind_sequence(call, keys[0], Some(self));
    }
}
impl<A: Delivered, B: Delivered> Delivered for (A, B) {
    fn bind(self, replay: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        self.0.bind(replay, call, &keys[..1]);
        self.1.bind(replay, call, &keys[1..]);
    }
}
impl Delivered for u64 {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        call.expect(keys[0], self);
    }
}
impl Delivered for Vec<i32> {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        call.expect(keys[0], self);
    }
}
impl Delivered for Vec<u8> {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        assert_eq!(call.out.bytes(keys[0]), self);
    }
}
impl Delivered for Stats {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        call.expect_object(keys[0], stats_object!(self));
    }
}
impl Delivered for AppendReport {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        call.expect_object(keys[0], reported(self));
    }
}
impl Delivered for Adoption {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        call.expect_object(keys[0], object!(self; rows, found, evicted, not_published, stale));
    }
}
impl Delivered for sys::routecap_store_counts {
    fn bind(self, _: &mut Replay, call: &Call<'_>, keys: &[&str]) {
        let counts = object!(self; block_rows, key_bytes, flags, generation, blocks,
            blocks_in_flight, blocks_retained, blocks_published, blocks_repeated, blocks_empty,
            blocks_refused, blocks_stale, blocks_adopted, blocks_absent, blocks_mismatched,
            blocks_replaced, blocks_evicted);
        call.expect_object(keys[0], counts);
    }
}
