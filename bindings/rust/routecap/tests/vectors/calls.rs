//! The calls that are made by their signatures: each parameter is made of what the vector
//! says under its name, by its type, and each result is compared by its type.
// Generated from the headers: run python3 dev/generate. Do not edit.

use routecap::{Sequence, Stream, key_chain};

use crate::replay::{Call, Inexpressible, Replay};

/// Whether the call is made here.
pub fn call(replay: &mut Replay, call: &Call<'_>) -> Result<bool, Inexpressible> {
    match call.name {
        "step_begin" => {
            let rows = replay.given(call, "rows");
            let forward = &mut replay.capturer(call)?.1;
            let answer = forward.begin(rows, Stream::HOST);
            call.delivered(replay, answer, &[]);
        }
        "step_snapshot" => {
            let forward = &mut replay.capturer(call)?.1;
            let answer = forward.snapshot(Stream::HOST);
            call.delivered(replay, answer, &[]);
        }
        "step_discard" => {
            let forward = &mut replay.capturer(call)?.1;
            let answer = forward.discard(Stream::HOST);
            call.delivered(replay, answer, &[]);
        }
        "step_poll" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.poll(replay.given(call, "step"));
            call.delivered(replay, answer, &[]);
        }
        "capturer_stats" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.stats();
            call.delivered(replay, answer, &["stats"]);
        }
        "capturer_progress" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.progress();
            call.delivered(replay, answer, &[]);
        }
        "request_truncate" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.truncate(replay.given(call, "request"), replay.given(call, "rows"));
            call.delivered(replay, answer, &[]);
        }
        "request_fork" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.fork(replay.given(call, "request"), replay.given(call, "rows"));
            call.delivered(replay, answer, &["child"]);
        }
        "request_attach" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.attach(replay.given(call, "request"), replay.routing(call)?, replay.given(call, "rows"));
            call.delivered(replay, answer, &[]);
        }
        "request_finish" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.finish(replay.given(call, "request"), replay.given(call, "rows"));
            call.delivered(replay, answer, &["routing"]);
        }
        "request_close" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.close(replay.given(call, "request"));
            call.delivered(replay, answer, &[]);
        }
        "routing_poll" => {
            let answer = replay.routing(call)?.poll();
            call.delivered(replay, answer, &[]);
        }
        "routing_split" => {
            let answer = replay.routing(call)?.split(replay.given(call, "prompt_tokens"), replay.given(call, "generated_tokens"));
            call.delivered(replay, answer, &["prompt", "generated"]);
        }
        "sequence_truncate" => {
            let tokens = replay.given(call, "tokens");
            let answer = replay.sequence(call).truncate(tokens);
            call.delivered(replay, answer, &[]);
        }
        "sequence_fork" => {
            let tokens = replay.given(call, "tokens");
            let answer = replay.sequence(call).fork(tokens);
            call.delivered(replay, answer, &["child"]);
        }
        "sequence_report" => {
            let answer = replay.sequence(call).report();
            call.delivered(replay, answer, &["report"]);
        }
        "sequence_deserialize" => {
            let answer = Sequence::deserialize(&call.input.bytes("data"), replay.given(call, "budget_bytes"));
            call.delivered(replay, answer, &["sequence"]);
        }
        "store_stats" => {
            let answer = replay.store(call).stats();
            call.delivered(replay, answer, &["counts"]);
        }
        "store_advance" => {
            let answer = replay.store(call).advance(replay.given(call, "generation"));
            call.delivered(replay, answer, &[]);
        }
        "request_publish" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.publish(replay.given(call, "request"), replay.store(call), replay.given(call, "first"), &call.input.bytes("keys"), replay.given(call, "generation"));
            call.delivered(replay, answer, &[]);
        }
        "request_adopt" => {
            let capturer = replay.capturer(call)?.0.clone();
            let answer = capturer.adopt(replay.given(call, "request"), replay.store(call), replay.given(call, "first"), &call.input.bytes("keys"), replay.given(call, "generation"));
            call.delivered(replay, answer, &["adoption"]);
        }
        "key_chain" => {
            let answer = key_chain(&call.input.bytes("seed"), &call.numbers("tokens"), replay.given(call, "block_rows"), replay.given(call, "key_bytes"));
            call.delivered(replay, answer, &["keys"]);
        }
        "store_contains" => {
            let answer = replay.store(call).contains(&call.input.bytes("keys"), replay.given(call, "generation"));
            call.delivered(replay, answer, &["reasons", "leading"]);
        }
        "store_retain" => {
            let answer = replay.store(call).retain(&call.input.bytes("keys"));
            call.delivered(replay, answer, &["reasons"]);
        }
        "store_release" => {
            let answer = replay.store(call).release(&call.input.bytes("keys"));
            call.delivered(replay, answer, &[]);
        }
        "store_evict" => {
            let answer = replay.store(call).evict(&call.input.bytes("keys"));
            call.delivered(replay, answer, &["evicted"]);
        }
        _ => return Ok(false),
    }
    Ok(true)
}
