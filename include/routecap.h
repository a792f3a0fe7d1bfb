/*
 * routecap: which experts every token was sent to, in every layer of a mixture-of-experts model,
 * captured from any inference engine.
 *
 * Copyright 2026 The routecap authors. Licensed under the Apache License, Version 2.0; see LICENSE.
 *
 * ------------------------------------------------------------------------------------------------
 * What it is
 * ------------------------------------------------------------------------------------------------
 * A mixture-of-experts (MoE) engine decides, for every token and every MoE layer, which K of E experts run. routecap keeps those
 * decisions, row by row and request by request, beside a running engine, and hands them out as immutable routings.
 *
 *   capturer   one per rank and device: owns the sink, the slots, the pages and the requests below
 *   layer      index 0..layers-1 among the captured (MoE) layers; the layer map gives each its decoder layer's index
 *   expert id  id in [0, experts) as the router chose it: before load-balancing replicas, without shared-expert columns, with zero experts
 *   sink       buffer (layers, rows, k) into which a forward pass writes its expert ids; its addresses never change
 *   step       one forward pass: begin, writes, snapshot, issue. The ticket that issue returns names it
 *   span       a run of sink rows of one step that belong to one request, at consecutive positions
 *   row        the k ids of every layer for one input token. Row i of a request is the routing when token i was *input*, so a sequence
 *              of S tokens has S-1 rows (S if the last token was itself forwarded, as in prefill-only work)
 *   request    a sequence being captured, named by a 64-bit handle; a stale handle is an error, never another request's rows
 *   routing    rows that were read out: immutable, reference-counted, owned by the caller; outlives request and capturer
 *   cell       one row in one layer. It is valid only if that layer wrote k distinct ids in range for that row in that step; validity is
 *              kept beside the ids, because every id value is an ordinary expert
 *   slot       memory that holds the rows of one step while it is in flight
 *   filed      rows that were put with their request: kept, or counted as missing. A step whose rows are filed has landed: they can be read
 *   settled    rows that are no draft, or whose draft was accepted; drafts that wait for that are provisional
 *   page       the unit in which memory for filed rows is taken from the budget; requests and routings share pages
 *   tag        a number of the caller's for each step, kept with its rows: a weight version, for instance
 *
 * One forward pass after another, in the engine's worker loop:
 *
 *     routecap_config config;                                      // once
 *     routecap_config_init(&config, sizeof config);
 *     config.backend = ROUTECAP_BACKEND_CUDA;
 *     config.layers = 58; config.k = 8; config.experts = 256; config.rows = 8192;
 *     routecap_capturer_create(&config, &capturer);
 *
 *     routecap_request_open(capturer, NULL, &request, 1);          // every sequence
 *
 *     routecap_step_begin(capturer, rows, stream);                 // every forward pass; these three may be part of a CUDA graph
 *     for each MoE layer l:  router; routecap_layer_record(capturer, l, &ids, stream);
 *     routecap_step_snapshot(capturer, stream);
 *     routecap_step_issue(capturer, spans, sizeof *spans, n, NULL, NULL, &step, stream);    // which row was whose
 *
 *     routecap_request_finish(capturer, request, tokens - 1, &routing);                     // the last token was never input
 *     routecap_routing_wait(routing, timeout_ns);                                           // on any thread, later
 *     routecap_routing_view(routing, &view); ...  routecap_routing_free(routing);
 *
 * Forget one of these calls and rows are missing and reported as missing; they are never wrong.
 *
 * The load of experts, for an operator: open a request for each step that is to be counted, one span with all its rows, finish it, and count the
 * ids of its view.
 *
 * ------------------------------------------------------------------------------------------------
 * The chapters, in reading order
 * ------------------------------------------------------------------------------------------------
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
#include "routecap/dispatch_check.h"
#include "routecap/table.h"

#endif /* ROUTECAP_H */
