/*
 * routecap: which experts every token was sent to, in every layer of a mixture-of-experts model,
 * captured from any inference engine.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * A mixture-of-experts (MoE) engine decides, for every token and every MoE layer, which k of the
 * layer's experts run. routecap captures these decisions while the engine runs. It stores them row
 * by row for each request, and returns them as immutable routings. "Words" below explains the
 * terms.
 *
 * A whole program. Its ten functions are those that most programs need:
 *
 *     #include <routecap.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     enum { LAYERS = 2, K = 2, EXPERTS = 8, TOKENS = 5 };
 *
 *     static void check(int32_t status) {
 *         if (status < 0) fprintf(stderr, "%s\n", routecap_last_error()), exit(1);
 *     }
 *
 *     int main(void) {
 *         routecap_config config = {.struct_size = sizeof config, .backend = ROUTECAP_BACKEND_HOST,
 *                                   .layers = LAYERS, .k = K, .experts = EXPERTS,
 *                                   .rows = 8192};            // the most tokens of one pass
 *         routecap_capturer *capturer;                        // one for each rank
 *         check(routecap_capturer_create(&config, &capturer));
 *
 *         routecap_request request;                           // one for each sequence
 *         check(routecap_request_open(capturer, NULL, &request, 1));
 *
 *         for (uint64_t token = 0; token < TOKENS; token++) { // each forward pass
 *             int32_t ids[LAYERS][K] = {{1, 5}, {2, 7}};      // what the routers chose
 *             routecap_layer_source layers[LAYERS] = {{.layer = 0, .ids = ids[0]},
 *                                                     {.layer = 1, .ids = ids[1]}};
 *             routecap_source source = {.struct_size = sizeof source, .rows = 1,
 *                                       .dtype = ROUTECAP_DTYPE_I32,
 *                                       .flags = ROUTECAP_SOURCE_WHOLE_STEP};
 *             check(routecap_layers_record(capturer, &source, layers, sizeof layers[0], LAYERS,
 *                                          NULL));
 *             routecap_span span = {.request = request, .position = token, .rows = 1};
 *             check(routecap_step_issue(capturer, &span, sizeof span, 1, NULL, NULL, NULL, NULL));
 *         }
 *
 *         routecap_routing *routing;
 *         check(routecap_request_finish(capturer, request, TOKENS, &routing));
 *         check(routecap_routing_wait(routing, -1));          // until all rows have landed
 *
 *         int16_t ids[TOKENS][LAYERS][K];
 *         routecap_copy_options options = {.struct_size = sizeof options,
 *                                          .dtype = ROUTECAP_DTYPE_I16, .fill = -1};
 *         check(routecap_routing_copy_to(routing, &options, ids, sizeof ids, NULL, 0, NULL));
 *         printf("token 4, layer 1: experts %d and %d\n", ids[4][1][0], ids[4][1][1]);
 *
 *         routecap_routing_free(routing);
 *         routecap_capturer_destroy(capturer);
 *     }
 *
 * It prints "token 4, layer 1: experts 2 and 7". Build it with
 * `cc program.c $(pkg-config --cflags --libs routecap)`.
 *
 * A status below 0 is an error, and routecap_last_error has its text. A status above 0 is success
 * with a remark, such as ROUTECAP_INCOMPLETE: some ids are missing. Check every status. The other
 * examples in these headers leave the checks out, to be short.
 *
 * On a GPU set config.backend to ROUTECAP_BACKEND_CUDA and config.device to the GPU's number. The
 * pointers to ids are then device pointers, and the last argument of routecap_layers_record and
 * routecap_step_issue is the engine's stream.
 *
 * ------------------------------------------------------------------------------------------------
 * Chapters
 * ------------------------------------------------------------------------------------------------
 * This file includes all of them. You can also read and include each by itself.
 *
 *   routecap/base.h            rules for all calls: threads, ownership, streams, the ABI, statuses
 *   routecap/capture.h         the capturer and its steps: begin, snapshot, issue
 *   routecap/record.h          how expert ids get into the sink
 *   routecap/reading.h         why cells are missing, and how ids are copied
 *   routecap/requests.h        sequences: open, accept drafts, fork, read, finish
 *   routecap/routing.h         the rows that were read: view, split, merge, copy
 *   routecap/serialized.h      routings as bytes, and from arrays of any origin
 *   routecap/wire.h            routings in the formats of servers and trainers
 *   routecap/sequence.h        one conversation's rows from many turns
 *   routecap/store.h           rows of prefixes that the engine caches: publish, adopt
 *   routecap/plan.h            the rows of one rank of a trainer, in its layout
 *   routecap/load.h            how often each expert was chosen: for operators and balancers
 *   routecap/diagnostics.h     a log
 *   routecap/dispatch_check.h  experimental: compare executed experts with routed ones;
 *                              declared if ROUTECAP_EXPERIMENTAL is defined
 *   routecap/table.h           all functions as one table, for programs that dlopen the library
 *
 * For models that send some tokens to fewer than k experts, and for the weights of the experts,
 * see "Cells with fewer experts" and "Weights" in base.h.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail: an engine's worker loop
 * ------------------------------------------------------------------------------------------------
 *
 *     routecap_config config;                                   // before you capture graphs
 *     routecap_config_init(&config, sizeof config);
 *     config.backend = ROUTECAP_BACKEND_CUDA;
 *     config.layers = 58; config.k = 8; config.experts = 256;
 *     config.rows = 8192;                                       // the most tokens of one pass
 *     routecap_capturer_create(&config, &capturer);
 *
 *     routecap_request_open(capturer, NULL, &request, 1);       // for every sequence
 *
 *     // for every forward pass; begin, record and snapshot may be part of a CUDA graph
 *     routecap_step_begin(capturer, rows, stream);
 *     for each MoE layer l:                                     // source: record.h
 *         run the router; routecap_layer_record(capturer, l, &source, stream);
 *     routecap_step_snapshot(capturer, stream);
 *     routecap_step_issue(capturer, spans, sizeof *spans, n,    // which row belongs to whom
 *                         NULL, NULL, &step, stream);
 *
 *     routecap_request_finish(capturer, request, tokens - 1,    // the last token was no input
 *                             &routing);
 *     routecap_routing_wait(routing, timeout_ns);               // later, on any thread
 *     routecap_routing_view(routing, &view);
 *     routecap_routing_free(routing);
 *
 * If a program forgets begin, record, snapshot or issue, its rows are reported as missing. They
 * never hold wrong ids.
 *
 * To measure the load of the experts, set ROUTECAP_CONFIG_LOAD: see routecap/load.h.
 *
 * ------------------------------------------------------------------------------------------------
 * In detail: a trainer's loop
 * ------------------------------------------------------------------------------------------------
 * A trainer needs base.h, routing.h, serialized.h or wire.h, sequence.h and plan.h.
 *
 *     for each turn of a conversation:                          // answer: its routing
 *         routecap_wire_decode(text, bytes, format, &hint, &report, &answer);
 *         routecap_sequence_append(sequence, tokens, 0, count, answer, NULL, NULL);
 *         routecap_routing_free(answer);
 *     routecap_sequence_routing(sequence, &routing);            // rows of the conversation
 *
 *     routecap_plan_create(&config, &plan);                     // for each micro-batch and rank
 *     sources[i].sample = i; sources[i].routing = routing;
 *     routecap_plan_gather(plan, sources, sizeof *sources, samples,
 *                          ids, ids_bytes, classes, classes_bytes, NULL);
 *     routecap_plan_free(plan);
 *
 * ------------------------------------------------------------------------------------------------
 * Words
 * ------------------------------------------------------------------------------------------------
 * Words that only one chapter uses are explained in that chapter.
 *
 *   capturer   One per rank and device. It owns a sink, slots, pages and requests.
 *   layer      An index, 0..layers-1, among the captured (MoE) layers. The layer map
 *              (routecap_config.layer_map) gives each captured layer its index among all layers of
 *              the model's decoder. If the decoder runs a layer several times, each time is a layer
 *              of its own here (routecap_config.layer_visit).
 *   router     The part of an MoE layer that chooses k experts for each token.
 *   expert id  A number in [0, experts), as the router chose it, before a load balancer maps it to
 *              one of several copies of the expert. Shared experts, which every token uses, are not
 *              included. Zero-computation (identity) experts count as experts.
 *   sink       A buffer [layers, rows, k] into which a forward pass writes its expert ids. Its
 *              addresses never change.
 *   row        The k ids of every layer for one input token. Row i of a request has the experts
 *              that were chosen in the pass in which token i was an input. A sequence of S tokens
 *              has S-1 rows. It has S rows if the last token was an input too, as when only a
 *              prompt is computed (prefill).
 *   sink row   A place for one row in the sink, from 0. Issue says which row of which request it
 *              holds. If a pass is padded, for example to the fixed size of a CUDA graph, the
 *              padding takes sink rows too.
 *   position   The index of a row in its request, from 0. It counts tokens. The position ids that
 *              the engine passes to the model may differ.
 *   cell       One row in one layer: k columns, with an expert id in each. A cell is valid if the
 *              layer wrote k distinct ids in range to it in one step. Otherwise it is missing.
 *              Validity is stored separately from the ids, because every id value may be an expert.
 *              Where the model allows it, a valid cell may have fewer than k ids; see base.h.
 *   weight     The factor by which the output of a chosen expert is multiplied. Weights are
 *              captured only on request; see base.h. "The weights" of the model, as in "a version
 *              of the weights", are its parameters.
 *   step       One forward pass: begin, writes, snapshot, issue. Issue returns its ticket.
 *   span       Consecutive sink rows of one step that belong to one request. Their positions are
 *              consecutive too, unless the engine gives them in device memory
 *              (ROUTECAP_SPAN_DEVICE_POSITIONS).
 *   slot       Memory that holds the rows of one step while the step is in flight.
 *              routecap_config.slots says how many steps may be in flight. The library has one slot
 *              more, for the pass that is not issued yet. A place in the engine's KV cache is
 *              called a cache slot (store.h).
 *   block      The rows that a store keeps under one key (store.h). A block of missing cells
 *              (reading.h) is something else.
 *   request    A token sequence that is being captured, identified by a 64-bit handle. Using the
 *              handle of a request that has ended is an error; handles are never reused.
 *   filed      A row is filed when it is stored with its request, or when the library has counted
 *              why it is not stored. A draft is stored provisionally. Each capturer has a worker
 *              thread, which files rows.
 *   landed     A step has landed when all its rows are filed. They can then be read.
 *   in flight  A step is in flight from its issue until it has landed, and so are its rows.
 *   draft      The row of a speculative token, which a draft model guessed and the model verifies.
 *              It is provisional until accept keeps or drops it.
 *   settled    A row that is not a draft is settled. A draft is settled when accept has kept or
 *              dropped it, or its request has ended.
 *   page       The unit in which rows take memory from the budget (routecap_config.budget_bytes).
 *              Requests and routings share pages.
 *   routing    A routing is an object: rows that were read, immutable, reference-counted, owned by
 *              the caller. It may outlive its request and its capturer. Without an article, as in
 *              "to replay routing", the word means which experts tokens are sent to.
 *   tag        A 64-bit number, such as the version of the model's weights, that the caller gives
 *              each step and that is stored with the step's rows.
 */
#ifndef ROUTECAP_H
#define ROUTECAP_H

#include "routecap/base.h"
#include "routecap/capture.h"
#include "routecap/record.h"
#include "routecap/reading.h"
#include "routecap/requests.h"
#include "routecap/routing.h"
#include "routecap/serialized.h"
#include "routecap/wire.h"
#include "routecap/sequence.h"
#include "routecap/store.h"
#include "routecap/plan.h"
#include "routecap/load.h"
#include "routecap/diagnostics.h"
#include "routecap/dispatch_check.h"
#include "routecap/table.h"

#endif /* ROUTECAP_H */
