#include "oracle.h"

#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <ggml.h>

#include "support.h"

static int32_t *row_at(const struct oracle *oracle, llama_seq_id sequence, int64_t row) {
    if (sequence >= ORACLE_SEQUENCES || row < 0 || row >= ORACLE_ROWS)
        die("the oracle has no room for sequence %d, row %d", sequence, (int)row);
    return oracle->ids +
           ((size_t)sequence * ORACLE_ROWS + (size_t)row) * oracle->layers * oracle->k;
}

/* A micro-batch begins: which rows of the batch are these? */
static void identify(struct oracle *oracle, const struct ggml_tensor *tokens) {
    oracle->rows = (int)tokens->ne[0];
    oracle->micro_batches++;
    for (int i = 0; i < oracle->rows; i++) {
        int32_t token;
        ggml_backend_tensor_get(tokens, &token, (size_t)i * sizeof token, sizeof token);
        int row = 0;
        while (row < oracle->batch->n_tokens &&
               (oracle->ran[row] || oracle->batch->token[row] != token))
            row++;
        if (row == oracle->batch->n_tokens) die("the engine runs a token that is not in the batch");
        oracle->ran[row] = true;
        oracle->row[i] = row;
        if (row + 1 < oracle->batch->n_tokens && oracle->ran[row + 1]) oracle->reordered++;
    }
}

static void copy(struct oracle *oracle, const struct ggml_tensor *topk, int layer) {
    const bool all = topk->ne[1] == oracle->rows;
    oracle->spared += (uint64_t)(oracle->rows - topk->ne[1]);
    if (topk->ne[1] > 1) oracle->stride = (int)(topk->nb[1] / sizeof(int32_t));
    int64_t from = 0;
    for (int i = 0; i < oracle->rows; i++) {
        const struct llama_batch *batch = oracle->batch;
        int row = oracle->row[i];
        if (!all && !batch->logits[row]) continue;
        if (from == topk->ne[1]) die("%s has fewer rows than want logits", topk->name);
        const int32_t *ids =
            (const int32_t *)((const char *)topk->data + (size_t)from++ * topk->nb[1]);
        for (int s = 0; s < batch->n_seq_id[row]; s++) {
            llama_seq_id sequence = batch->seq_id[row][s];
            int32_t *to = row_at(oracle, sequence, batch->pos[row] + oracle->shift[sequence]) +
                          (size_t)layer * oracle->k;
            for (size_t c = 0; c < oracle->k && to[c] == 0; c++) to[c] = ids[c] + 1;
        }
    }
}

static bool on_tensor(struct ggml_tensor *tensor, bool ask, void *user) {
    struct oracle *oracle = user;
    int decoder_layer;
    if (oracle->batch != NULL && ask && tensor->op == GGML_OP_GET_ROWS &&
        strcmp(tensor->src[1]->name, "inp_tokens") == 0)
        identify(oracle, tensor->src[1]);
    if (oracle->batch != NULL && !ask &&
        sscanf(tensor->name, "ffn_moe_topk-%d", &decoder_layer) == 1) {
        oracle->topks++;
        int layer = oracle->tap->layer_of[decoder_layer];
        if (layer >= 0) copy(oracle, tensor, layer);
    }
    return oracle->inner(tensor, ask, (void *)oracle->tap);
}

void oracle_attach(struct oracle *oracle, const struct tap *tap,
                   struct llama_context_params *params) {
    *oracle = (struct oracle){.inner = params->cb_eval, .tap = tap};
    params->cb_eval = on_tensor;
    params->cb_eval_user_data = oracle;
}

void oracle_start(struct oracle *oracle, const routecap_config *config) {
    oracle->layers = config->layers;
    oracle->k = config->k;
    oracle->ids = calloc((size_t)ORACLE_SEQUENCES * ORACLE_ROWS * oracle->layers * oracle->k,
                         sizeof *oracle->ids);
    oracle->ran = calloc(oracle->tap->max_rows, sizeof *oracle->ran);
    oracle->row = calloc(oracle->tap->max_rows, sizeof *oracle->row);
    if (oracle->ids == NULL || oracle->ran == NULL || oracle->row == NULL) die("out of memory");
}

void oracle_stop(struct oracle *oracle) {
    free(oracle->ids);
    free(oracle->ran);
    free(oracle->row);
}

void oracle_begin(struct oracle *oracle, const struct llama_batch *batch) {
    oracle->batch = batch;
    if (batch != NULL) memset(oracle->ran, 0, (size_t)batch->n_tokens * sizeof *oracle->ran);
}

void oracle_forget(struct oracle *oracle, llama_seq_id sequence, int row) {
    memset(row_at(oracle, sequence, row), 0,
           (size_t)(ORACLE_ROWS - row) * oracle->layers * oracle->k * sizeof(int32_t));
}

void oracle_copy(struct oracle *oracle, llama_seq_id from, llama_seq_id to, int rows) {
    oracle->shift[to] = oracle->shift[from];
    memcpy(row_at(oracle, to, 0), row_at(oracle, from, 0),
           (size_t)rows * oracle->layers * oracle->k * sizeof(int32_t));
}

struct verdict oracle_compare(const struct oracle *oracle, llama_seq_id sequence,
                              const routecap_routing *routing) {
    const routecap_api *api = oracle->tap->api;
    const size_t layers = oracle->layers, k = oracle->k;
    routecap_view view = {.struct_size = sizeof view};
    routecap_copy_options options;
    if (api->routing_view(routing, &view) < 0 ||
        api->copy_options_init(&options, sizeof options) < 0)
        die("%s", api->last_error());
    options.dtype = ROUTECAP_DTYPE_I32;
    const size_t cells = (size_t)view.rows * layers;
    int32_t *ids = malloc(cells * k * sizeof *ids + 1);
    uint8_t *valid = malloc(cells + 1);
    if (ids == NULL || valid == NULL) die("out of memory");
    if (api->routing_copy_to(routing, &options, ids, cells * k * sizeof *ids, valid, cells, NULL) <
        0)
        die("%s", api->last_error());

    struct verdict verdict = {.rows = view.rows};
    for (size_t cell = 0; cell < cells; cell++) {
        const int32_t *expected =
            row_at(oracle, sequence, (int64_t)(cell / layers)) + cell % layers * k;
        bool same = valid[cell] == (expected[0] != 0);
        for (size_t c = 0; c < k && same && valid[cell]; c++)
            same = ids[cell * k + c] == expected[c] - 1;
        verdict.differences += !same;
        verdict.cells += valid[cell];
        verdict.missing += !valid[cell];
    }
    const int32_t *behind =
        row_at(oracle, sequence,
               0); /* what the engine chose for rows that the routing does not have at all */
    for (size_t i = (size_t)view.rows * layers; i < ORACLE_ROWS * layers; i++)
        verdict.differences += behind[i * k] != 0;
    free(ids);
    free(valid);
    return verdict;
}
